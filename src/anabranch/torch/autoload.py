"""Register the backend with torch.distributed; PyTorch loads this module as an entry point.

Before torch 2.14, each ``import torch`` does so, in every program. So nothing may fail here, and
the backend's modules are imported only when a process group is made.
"""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("anabranch")


def register() -> None:
    """Register the backend ``anabranch``, for tensors on CPUs and CUDA devices."""
    try:
        import torch.distributed as dist

        if not dist.is_available() or "anabranch" in dist.Backend.backend_list:
            return
        dist.Backend.register_backend(
            "anabranch", _process_group, extended_api=True, devices=["cpu", "cuda"]
        )
    except Exception:  # it would break `import torch` wherever this package is installed
        _log.warning("torch.distributed does not know the backend anabranch", exc_info=True)


def _process_group(given: Any, options: Any) -> Any:
    from anabranch.torch.backend import process_group

    return process_group(given, options)
