"""What a collective returns: a ``torch.distributed.Work`` that the group's thread completes."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

from anabranch.group import Handle
from anabranch.group.writing import overwrite
from anabranch.net.errors import RunAborted

_cuda: Any = torch.cuda
_LONGEST_S = 3600.0  # between two looks at what is due
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
            "anabranch.torch.ddp_hooks.InOrder(powerSGD_hook, state)"
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
            setattr(kind, name, torch.compiler.disable(method))


class Work(dist.Work):
    """A collective that is under way.

    Its future always succeeds, with ``(True, tensors)`` or ``(False, error)``: one that fails by
    ``set_exception`` crashes DDP's backward pass. ``get_future`` unwraps it.

    Args:
        what: for messages, such as ``all_reduce``.
        devices: of the tensors that are not on the CPU.
        settled: is called with it, first of all, once there is a result or none.
        exchanges: whether its tensors are read and written meanwhile.
    """

    def __init__(
        self,
        what: str,
        devices: Sequence[torch.device] = (),
        settled: Callable[[Work], None] | None = None,
        exchanges: bool = False,
    ) -> None:
        super().__init__()
        self.what = what
        self.exchanges = exchanges
        self.is_given_up = False  # the program was interrupted while it waited for it
        self._settled = settled
        self._claimed = threading.Lock()  # by what settles it: its end, or that of its time
        self._is_done = threading.Event()
        self._error: BaseException | None = None
        self._tensors: list[Any] = []
        self._base: Any = torch.futures.Future(devices=list(devices))

    def succeed(self, tensors: list[Any]) -> None:
        """The tensors hold the result; nothing happens where it has failed before.

        Args:
            tensors: or, as hooks expect it of an all_gather's future, a list of such lists.
        """
        if self._claimed.acquire(blocking=False):
            self._tensors = tensors
            self._settle((True, tensors))

    def fail(self, error: BaseException) -> bool:
        """There is no result; nothing happens, and False is returned, where it has ended before."""
        is_first = self._claimed.acquire(blocking=False)
        if is_first:
            self._error = error
            self._settle((False, error))
        return is_first

    def _settle(self, result: tuple[bool, Any]) -> None:
        if self._settled is not None:
            self._settled(self)
        self._is_done.set()
        _here.calls_back = True
        try:
            self._base.set_result(result)
        finally:
            _here.calls_back = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return once the tensors hold the result.

        Args:
            timeout: how long to wait at most; zero for as long as its process group lets it take.

        Raises:
            RuntimeError: it is not done by then, and goes on; or its process group's timeout is
                over, which ends that; or this is a callback of a future.
            ExchangeError, RunAborted: as for the group's call.
        """
        limit_s = timeout.total_seconds() if timeout > timedelta(0) else None
        if not self._is_done.is_set():
            check_may_wait()
        if not self.ends_within(limit_s):
            raise RuntimeError(f"{self.what}: not done in {limit_s:g} s; it goes on: wait again")
        _unwrap(self._base)
        return True

    def ends_within(self, limit_s: float | None) -> bool:
        """Wait for so long at most; return whether it has ended."""
        try:
            return self._is_done.wait(limit_s)
        except BaseException:
            self.is_given_up = True
            raise

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
        nested = bool(self._tensors) and isinstance(self._tensors[0], list)
        return self._tensors[0] if nested else self._tensors

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors, as comm hooks chain them."""
        return self._base.then(_unwrap)


untraced(Work)


def together(works: Sequence[Work], devices: Sequence[torch.device]) -> Any:
    """Return a future of all tensors of several works.

    The future of ``torch.futures.collect_all`` knows no devices: what is chained to it would read
    a GPU's tensors before they are there.

    Args:
        works: of exchanges.
        devices: of their tensors that are not on the CPU.
    """
    whole = Work(works[0].what, devices)

    def ended(all_of_them: Any) -> None:
        try:
            tensors = [each.wait() for each in all_of_them.wait()]
            whole.succeed([tensor for several in tensors for tensor in several])
        except Exception as error:
            whole.fail(error)

    torch.futures.collect_all([each.get_future() for each in works]).then(ended)
    return whole.get_future()


def used_here(*tensors: torch.Tensor) -> None:
    """Keep the memory of a GPU's tensors until the current stream has used them.

    A callback runs in a stream of its own, and their memory is given to the stream that made them
    once they are dropped.
    """
    for each in tensors:
        if each.is_cuda:
            each.record_stream(_cuda.current_stream(each.device))


class Deadlines:
    """Ends works that take too long, whether or not anything waits for them.

    Its thread must end before the interpreter: if it drops the last reference to a process group
    while the interpreter ends, C++ aborts the process.

    Args:
        ended: is called with a work whose time is over, and its limit in seconds, by a thread of
            this object's.
    """

    def __init__(self, ended: Callable[[Work, float], None]) -> None:
        self._ended = ended
        self._due: dict[Work, tuple[float, float]] = {}  # (at, limit), seconds
        self._changed = threading.Condition()
        self._next_s = 0.0  # when the thread looks next
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, work: Work, limit_s: float) -> None:
        """Take note of a work that begins now."""
        due_s = time.monotonic() + limit_s
        with self._changed:
            self._due[work] = due_s, limit_s
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="anabranch timeouts", daemon=True
                )
                self._thread.start()
                atexit.register(self._end)
            elif due_s < self._next_s:
                self._changed.notify()

    def remove(self, work: Work) -> None:
        """Take note that a work has ended."""
        with self._changed:
            self._due.pop(work, None)
            if self._is_closed:
                self._changed.notify()

    def under_way(self) -> list[Work]:
        """Return the works that have not ended."""
        with self._changed:
            return [*self._due]

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed and not self._due:
                    return
                now_s = time.monotonic()
                over = [each for each in self._due.items() if each[1][0] <= now_s]
                if not over:
                    due_s = [each for each, _ in self._due.values()]
                    self._next_s = min([*due_s, now_s + _LONGEST_S])
                    self._changed.wait(self._next_s - now_s)
                    continue
            for work, (_, limit_s) in over:
                self._ended(work, limit_s)
                self.remove(work)

    def close(self) -> None:
        """End the thread, once no work is under way: none is added any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            is_over = not self._due
        if is_over:
            self._join()

    def _end(self) -> None:
        with self._changed:
            self._due.clear()
        self.close()

    def _join(self) -> None:
        atexit.unregister(self._end)
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()


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
            self.in_order(lambda: _begin(work, tensors, tensors, exchange, nullcontext))
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

        self.in_order(begin, waits=True)
        return work

    def in_order(self, begin: Callable[[], None], waits: bool = False) -> None:
        """Begin a call once those before it have begun.

        Args:
            begin: begins it; raises nothing.
            waits: whether it waits for a copy; then a thread of this object's calls it.
        """
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
                        overwrite(tensor, copy, non_blocking=True)
                work.succeed(tensors)
        except Exception as error:
            work.fail(_told(error))

    try:
        handle, finish = exchange(staged)
    except Exception as error:
        work.fail(error)
        return
    handle.on_done(ended)


def _told(error: Exception) -> Exception:
    if isinstance(error, CancelledError):
        return RunAborted("this rank has left the group, or another rank of its site is gone")
    return error


def complete(
    work: Work,
    begin: Callable[[], Future[Any]],
    go_on: Callable[[Any], None],
) -> None:
    """Begin a call of the group's, and go on with a work when it ends.

    Args:
        work: fails where the call does.
        begin: begins the call.
        go_on: is called with its result; completes the work, or sees to it; may raise.
    """

    def ended(done: Future[Any]) -> None:
        try:
            go_on(done.result())
        except Exception as error:
            work.fail(_told(error))

    try:
        future = begin()
    except Exception as error:
        work.fail(error)
        return
    future.add_done_callback(ended)
