"""Functions, arguments and results for another process of this machine, by value.

A process that multiprocessing starts imports this one's main module, if that is a file or a module.
Importable objects are sent by name, as with plain pickle, so that a class is one class in both.
All else is sent by value: functions of a notebook or of ``python -``, lambdas, closures, and
tensors. Multiprocessing's own pickler puts tensors into shared memory: that is gone once the sender
has ended, and until then both processes write into the same elements.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from types import FunctionType
from typing import Any

import cloudpickle

# Types of tensors that PyTorch pickles and cannot read again: sent as integers of the same bits.
_NEWER = ("float8", "uint16", "uint32", "uint64")


def dumps(value: Any) -> bytes:
    """Return a value as bytes; ``pickle.loads`` reads them in this process or a started one.

    Raises:
        Exception: the value cannot be pickled; its type raises this.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def is_main_imported() -> bool:
    """Return whether a process that multiprocessing starts imports this one's main module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # `python -m`; of a package's __main__ multiprocessing imports nothing
        return spec.name != "__main__" and not spec.name.endswith(".__main__")
    path = getattr(main, "__file__", None)
    return path is not None and os.path.isfile(path) and not _is_descriptor(path)


def _is_descriptor(path: str) -> bool:
    """Return whether a path names a descriptor of this process, which no other can open."""
    return os.path.realpath(os.path.dirname(path)) == os.path.realpath("/dev/fd")


@contextmanager
def hide_main_file() -> Iterator[None]:
    """Hide ``__main__.__file__`` if it names no file, such as ``<stdin>``; a child would run it."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or is_main_imported():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = path


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._main = sys.modules["__main__"] if is_main_imported() else None

    def reducer_override(self, value: Any) -> Any:
        """See :meth:`pickle.Pickler.reducer_override`."""
        # cloudpickle takes every main module for one that cannot be imported.
        if isinstance(value, type | FunctionType) and self._is_of_main(value):
            return NotImplemented
        torch = sys.modules.get("torch")  # a tensor exists only once torch is imported
        if torch is not None and type(value) is torch.Tensor:
            kind = str(value.dtype).removeprefix("torch.")
            if kind.startswith(_NEWER):
                same = getattr(torch, f"int{8 * value.element_size()}")
                return _of_type, (value.detach().view(same), value.dtype, value.requires_grad)
        return super().reducer_override(value)

    def _is_of_main(self, value: type | FunctionType) -> bool:
        if self._main is None or value.__module__ != "__main__":
            return False
        try:
            return reduce(getattr, value.__qualname__.split("."), self._main) is value  # type: ignore[comparison-overlap]
        except AttributeError:
            return False


def _of_type(bits: Any, kind: Any, requires_grad: bool) -> Any:
    return bits.view(kind).requires_grad_(requires_grad)
