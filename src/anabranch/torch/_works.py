"""The result of a collective: a ``torch.distributed.Work`` that the group's thread completes."""

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
_LONGEST_S = 3600.0  # between two looks at deadlines
_here = threading.local()  # `calls_back` is true in a thread while it runs futures' callbacks
Begun = tuple[Handle, Callable[[], None]]


def check_may_begin() -> None:
    """Check that the caller is no callback of a future.

    Callbacks run in the group's thread, which would wait for itself. And their place among other
    calls differs from rank to rank.

    Raises:
        RuntimeError: the caller is a callback; says what to do.
    """
    if getattr(_here, "calls_back", False):
        raise RuntimeError(
            "a collective is called in a callback of a future, so ranks would call collectives in "
            "different orders; for a comm hook that does so, as torch's powerSGD_hook, register "
            "anabranch.torch.ddp_hooks.InOrder(powerSGD_hook, state)"
        )


def check_may_wait() -> None:
    """Check that the caller is no callback of a future: the group's thread would wait for itself.

    Raises:
        RuntimeError: the caller is a callback; says what to do.
    """
    if getattr(_here, "calls_back", False):
        raise RuntimeError(
            "wait() is called in a callback of a future, which runs in the thread that completes "
            "the work; chain to the work's get_future() instead"
        )


def untraced(kind: type) -> None:
    """Exclude a class's methods, and all that they call, from torch.compile.

    Under a compiled model, torch.compile traces every Python function that PyTorch calls. DDP's
    reducer calls these methods, and torch.compile cannot trace a process group.
    """
    for name, method in list(vars(kind).items()):
        if not name.startswith("__") and isinstance(method, FunctionType):
            setattr(kind, name, torch.compiler.disable(method))


class Work(dist.Work):
    """A collective that is under way.

    The base future always succeeds, with ``(True, tensors)`` or ``(False, error)``: a future that
    fails by ``set_exception`` crashes DDP's backward pass. ``get_future`` unwraps the result.

    Args:
        what: the call in words, for messages, such as ``all_reduce``.
        devices: the devices of the tensors that are not on the CPU.
        settled: called with this work once it has a result or an error, before all else.
        exchanges: whether the call reads and writes the tensors until its end.
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
        self.is_given_up = False  # whether an exception interrupted a wait for this work
        self._settled = settled
        self._claimed = threading.Lock()  # the first to settle the work takes it, and keeps it
        self._is_done = threading.Event()
        self._error: BaseException | None = None
        self._tensors: list[Any] = []
        self._base: Any = torch.futures.Future(devices=list(devices))

    def succeed(self, tensors: list[Any]) -> None:
        """Settle the work: the tensors hold the result. Do nothing if it is settled already.

        Args:
            tensors: the tensors; or a list of lists of them, which hooks expect of an all_gather.
        """
        if self._claimed.acquire(blocking=False):
            self._tensors = tensors
            self._settle((True, tensors))

    def fail(self, error: BaseException) -> bool:
        """Settle the work with an error; return False, and do nothing, if it is settled already."""
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
            timeout: the longest wait; zero waits until the end, or the process group's timeout.

        Raises:
            RuntimeError: the work is not done by then, and continues. Or the process group's
                timeout is over, which ends the process group. Or the caller is a callback of a
                future.
            ExchangeError, RunAborted: as for the group's call.
        """
        limit_s = timeout.total_seconds() if timeout > timedelta(0) else None
        if not self._is_done.is_set():
            check_may_wait()
        if not self.ends_within(limit_s):
            raise RuntimeError(f"{self.what}: not done in {limit_s:g} s; it continues: wait again")
        _unwrap(self._base)
        return True

    def ends_within(self, limit_s: float | None) -> bool:
        """Wait at most ``limit_s``, None for no limit; return whether the work has ended."""
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
        """Return the error, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        nested = bool(self._tensors) and isinstance(self._tensors[0], list)
        return self._tensors[0] if nested else self._tensors

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors, to which comm hooks chain callbacks."""
        return self._base.then(_unwrap)


untraced(Work)


def together(works: Sequence[Work], devices: Sequence[torch.device]) -> Any:
    """Return a future of all tensors of several works.

    The future of ``torch.futures.collect_all`` knows no devices: its callbacks would read a GPU's
    tensors too early.

    Args:
        works: works of exchanges.
        devices: the devices of their tensors that are not on the CPU.
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

    A callback runs in a separate stream. Once tensors are dropped, PyTorch returns their memory to
    the stream that made them.
    """
    for each in tensors:
        if each.is_cuda:
            each.record_stream(_cuda.current_stream(each.device))


class Deadlines:
    """Ends works that exceed their limits, even if no thread waits for them.

    The thread of this object must end before the interpreter: if it drops the last reference to a
    process group while the interpreter ends, C++ aborts the process.

    Args:
        ended: called in that thread with a work that has exceeded its limit, and the limit in
            seconds.
    """

    def __init__(self, ended: Callable[[Work, float], None]) -> None:
        self._ended = ended
        self._due: dict[Work, tuple[float, float]] = {}  # (at, limit), seconds
        self._changed = threading.Condition()
        self._next_s = 0.0  # when the thread looks next
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, work: Work, limit_s: float) -> None:
        """Add a work that begins now."""
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
        """Remove a work that has ended."""
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
        """End the thread, once no work is under way; call ``add`` no more after this."""
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
    """Starts exchanges in the order of calls; copies a GPU's tensors to memory before.

    A separate stream copies a GPU's tensors to pinned memory. A thread waits for the copy, and
    starts the exchange. The same stream copies the result back. So neither the caller nor the
    group's thread waits for the GPU. Calls on CPU tensors start at once, unless an earlier call
    still waits for its copy.
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
            work: the work, which the exchange completes.
            tensors: overwritten.
            exchange: begins the exchange of tensors in the CPU's memory. It returns the handle, and
                a function that puts the result into these tensors once the exchange has ended.
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
        """Begin a call once all earlier calls have begun.

        Args:
            begin: begins the call; raises nothing.
            waits: whether ``begin`` waits for a copy; then this object's thread calls it.
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
        """End the thread, once all waiting calls have begun."""
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
            with streaming():  # the future records events in these streams, for its callbacks
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
    """Begin a call of the group, and continue a work when the call ends.

    Args:
        work: fails if the call does.
        begin: begins the call.
        go_on: called with the call's result. It completes the work, or begins another call that
            does; it may raise.
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
