"""What a collective returns: a ``torch.distributed.Work`` that the group's thread completes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

from anabranch.group import Handle
from anabranch.net.errors import RunAborted

_cuda: Any = torch.cuda
_here = threading.local()  # has `calls_back` in a thread that runs futures' callbacks just now
Begun = tuple[Handle, Callable[[], None]]


def check_may_begin() -> None:
    """Check that this is no callback of a future.

    Callbacks run in the group's thread, which would wait for itself; and where they run among other
    calls differs from rank to rank.

    Raises:
        RuntimeError: it is; says what to do.
    """
    if getattr(_here, "calls_back", False):
        raise RuntimeError(
            "a collective is called in a callback of a future, so ranks would call collectives in "
            "different orders; for a comm hook that does so, as torch's powerSGD_hook, register "
            "anabranch.interop.ddp_hooks.InOrder(powerSGD_hook, state)"
        )


def check_may_wait() -> None:
    """Check that this is no callback of a future: the group's thread would wait for itself.

    Raises:
        RuntimeError: it is; says what to do.
    """
    if getattr(_here, "calls_back", False):
        raise RuntimeError(
            "a work is waited for in a callback of a future, which runs in the thread that carries "
            "it; chain to its get_future() instead"
        )


def untraced(kind: type) -> None:
    """Let torch.compile leave a class's methods alone, and what they call.

    Under a compiled model it traces every Python function that PyTorch calls, those that DDP's
    reducer calls among them, and cannot trace a process group.
    """
    for name, method in list(vars(kind).items()):
        if not name.startswith("__") and isinstance(method, FunctionType):
            setattr(kind, name, torch.compiler.disable(method))  # type: ignore[no-untyped-call]


class Work(dist.Work):
    """A collective that is under way.

    Its future always succeeds, with ``(True, tensors)`` or ``(False, error)``: one that fails by
    ``set_exception`` crashes DDP's backward pass. ``get_future`` unwraps it.

    Args:
        what: for messages, such as ``all_reduce``.
        timeout: how long ``wait`` waits if not told.
        devices: of the tensors that are not on the CPU.
    """

    def __init__(self, what: str, timeout: timedelta, devices: Sequence[torch.device] = ()) -> None:
        super().__init__()
        self._what = what
        self._timeout = timeout
        self._is_done = threading.Event()
        self._error: BaseException | None = None
        self._tensors: list[torch.Tensor] = []
        self._base: Any = torch.futures.Future(devices=list(devices))

    def succeed(self, tensors: list[torch.Tensor]) -> None:
        """The tensors hold the result."""
        self._tensors = tensors
        self._settle((True, tensors))

    def fail(self, error: BaseException) -> None:
        """There is no result."""
        self._error = error
        self._settle((False, error))

    def _settle(self, result: tuple[bool, Any]) -> None:
        self._is_done.set()
        _here.calls_back = True
        try:
            self._base.set_result(result)
        finally:
            _here.calls_back = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return once the tensors hold the result.

        Raises:
            RuntimeError: it is not done in time, or this is a callback of a future.
            ExchangeError, RunAborted: as for the group's call.
        """
        limit = timeout if timeout > timedelta(0) else self._timeout
        if not self._is_done.is_set():
            check_may_wait()
        if not self._is_done.wait(limit.total_seconds()):
            raise RuntimeError(
                f"{self._what}: the timeout of {limit.total_seconds():g} s is over: a rank has not "
                "called it, or the links carry it more slowly; give init_process_group a longer one"
            )
        _unwrap(self._base)
        return True

    def is_completed(self) -> bool:
        """Return whether ``wait`` would return, or raise, at once."""
        return self._is_done.is_set()

    def is_success(self) -> bool:
        """Return whether the tensors hold the result."""
        return self._is_done.is_set() and self._error is None

    def exception(self) -> Any:
        """Return what went wrong, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self._tensors

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors, as comm hooks chain them."""
        return self._base.then(_unwrap)


untraced(Work)


def _unwrap(future: Any) -> list[torch.Tensor]:
    is_ok, value = future.wait()
    if not is_ok:
        raise value
    tensors: list[torch.Tensor] = value
    return tensors


class Starter:
    """Starts exchanges in the order of calls; those of a GPU's tensors once they are in memory.

    A GPU's tensor is copied to pinned memory in a stream of its own, a thread waits for that and
    starts the exchange, and the result is copied back in the same stream; so neither the caller
    nor the group's thread waits for the GPU. Calls on tensors of the CPU start at once unless such
    a copy is before them.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(
        self,
        work: Work,
        tensors: list[torch.Tensor],
        exchange: Callable[[list[torch.Tensor]], Begun],
    ) -> Work:
        """Begin an exchange of tensors that are all on one device.

        Args:
            work: is completed by it.
            tensors: overwritten.
            exchange: begins it, of tensors in the CPU's memory; returns its handle, and what puts
                the result into these tensors once that has ended.
        """
        device = tensors[0].device
        if device.type == "cpu":
            self._in_order(lambda: _begin(work, tensors, tensors, exchange, nullcontext))
            return work
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = _cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        copied = _cuda.Event()
        with torch.cuda.stream(stream):
            staged = [
                torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors
            ]
            for tensor, copy in zip(tensors, staged, strict=True):
                tensor.record_stream(stream)
                copy.copy_(tensor, non_blocking=True)
            copied.record(stream)

        def begin() -> None:
            copied.synchronize()
            _begin(work, tensors, staged, exchange, lambda: torch.cuda.stream(stream))

        self._in_order(begin, waits=True)
        return work

    def _in_order(self, begin: Callable[[], None], waits: bool = False) -> None:
        with self._lock:
            if waits or self._pending:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="anabranch staging", daemon=True
                    )
                    self._thread.start()
                self._pending += 1
                self._waiting.put(begin)
                return
            begin()

    def _run(self) -> None:
        while (begin := self._waiting.get()) is not None:
            begin()
            with self._lock:
                self._pending -= 1

    def close(self) -> None:
        """End the thread, once what waits has begun."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()


def _begin(
    work: Work,
    tensors: list[torch.Tensor],
    staged: list[torch.Tensor],
    exchange: Callable[[list[torch.Tensor]], Begun],
    streaming: Callable[[], Any],
) -> None:
    """Begin an exchange of staged tensors; its end writes tensors back and completes the work."""

    def ended(handle: Handle) -> None:
        try:
            handle.wait()
            finish()
            with streaming():  # the future takes note of what it has to wait for there
                if staged is not tensors:
                    for tensor, copy in zip(tensors, staged, strict=True):
                        tensor.copy_(copy, non_blocking=True)
                work.succeed(tensors)
        except CancelledError:
            work.fail(
                RunAborted("this rank has left the group, or another rank of its site is gone")
            )
        except Exception as error:
            work.fail(error)

    try:
        handle, finish = exchange(staged)
    except Exception as error:
        work.fail(error)
        return
    handle.on_done(ended)


def complete(work: Work, future: Future[Any], finish: Callable[[Any], list[torch.Tensor]]) -> Work:
    """Complete a work when a call of the group's ends.

    Args:
        work: which.
        future: of the call.
        finish: makes tensors of its result.
    """

    def ended(done: Future[Any]) -> None:
        try:
            work.succeed(finish(done.result()))
        except Exception as error:
            work.fail(error)

    future.add_done_callback(ended)
    return work
