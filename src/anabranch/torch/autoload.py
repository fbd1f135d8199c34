"""Tell torch.distributed of the backend; loaded by PyTorch itself, as an entry point.

Before torch 2.14 that happens on every ``import torch``, in whichever program: nothing may fail
here, and what the backend needs is imported once a process group is made.
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
    except Exception:  # else it would break `import torch` where this package is installed
        _log.warning("torch.distributed does not know the backend anabranch", exc_info=True)


def _process_group(given: Any, options: Any) -> Any:
    from anabranch.torch.backend import process_group

    return process_group(given, options)
