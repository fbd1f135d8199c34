"""An asyncio event loop in virtual time: it never waits, it moves its clock.

Theory of operation
-------------------

A run of hours takes as long as its events take to handle, and gives the same events every time.
``_run_once`` does the first of these four that applies::

    1. callbacks are ready        run them, first in, first out
    2. the instant is ending      run what ``at_end_of_instant`` gathered
    3. the agenda has an entry    move time to the earliest; run all entries of that instant,
                                  in the order in which they were scheduled
    4. neither                    Deadlock

An instant ends only when no callback is ready and no entry of the agenda is due. Calls at its end
may make callbacks ready again; then the instant continues. So the network computes the shares of
flows that start together once (:mod:`anabranch_lab.sim.network`).

A callback is *scheduled*, then *ready*, then *run*; or *cancelled*; or *held*. All processes of a
simulation share one loop, and one may stand still while the others run. A callback belongs to the
process in whose context it was made (``process_of``). ``stand_still`` holds a process's callbacks
when their turn comes, and ``go_on`` makes them ready again, in that order.

The loop does an executor's work at once, in place, in no virtual time.

Each of these raises a named error at once, or is excluded:

- *Nothing can ever happen, and a task still waits.* :class:`Deadlock` names the tasks, and the
  functions in which they wait. Entries of ``at_unless_idle`` do not count: outages come without
  end, and would hide the deadlock.
- *Another thread calls in.* Its moment would depend on the machine.
- *A callback asks for a socket, a pipe or a subprocess.* These live in real time.
- *A callback raises, and the run continues.* asyncio would only log it; here it ends the run.
- *Order depends on addresses or hashes.* The agenda breaks ties by the order of scheduling.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import events
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from types import CoroutineType
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MOST_NAMED = 5  # tasks that a Deadlock names of those that wait in the same place
_ASYNCIO = str(Path(asyncio.__file__).parent)

process_of: ContextVar[Hashable] = ContextVar("process_of", default=None)
"""The process whose callback runs; None for callbacks of the simulation."""


class Deadlock(RuntimeError):
    """Nothing is scheduled and nothing can run, but the main task has not finished.

    Args:
        why: known reasons, in terms of the scenario.
        waiting: the tasks that wait, and the functions in which they wait.

    Attributes:
        why: see above.
    """

    def __init__(self, why: Sequence[str], waiting: Sequence[str]) -> None:
        said = "; ".join((*why, *waiting)) or "nothing is known of why"
        super().__init__(f"nothing can happen any more: {said}")
        self.why = tuple(why)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time moves only when nothing is left to do at the present instant.

    At one instant, ready callbacks run before entries of the agenda that are due. Both run first
    in, first out. A callback that raises ends the run.

    Attributes:
        handled: how many callbacks have run, for benchmarks.
        explain: functions that are called on a deadlock; each returns lines with its causes.
    """

    # The base class has these attributes, but its type stub does not.
    _ready: deque[asyncio.Handle]
    _stopping: bool
    _thread_id: int | None

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        # (when, order of scheduling, callback, its arguments, the handle if it can be cancelled)
        self._agenda: list[tuple[float, int, Callable[..., object], tuple[Any, ...], Any]] = []
        self._order = count()
        self._closing_instant: list[Callable[[], object]] = []
        self._of_outside = 0  # entries of the agenda by `at_unless_idle`
        self._held: dict[Hashable, list[asyncio.Handle]] = {}  # by process that stands still
        self.handled = 0
        self._raised: BaseException | None = None  # by a callback
        self.explain: list[Callable[[], list[str]]] = []

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now_s

    # --- scheduling

    def at(self, when_s: float, callback: Callable[..., object], *args: object) -> None:
        """Call back at a moment, or now if it has passed; the call cannot be cancelled.

        Like ``call_at``, without the cost of a handle and a context.
        """
        self._check_thread()
        when_s = when_s if when_s > self._now_s else self._now_s
        heappush(self._agenda, (when_s, next(self._order), callback, args, None))

    def at_unless_idle(self, when_s: float, callback: Callable[..., object], *args: object) -> None:
        """Call back at a moment as `at` does, unless only such calls are left by then.

        For events from outside that never end, such as outages. A run in which only these are left
        is deadlocked.
        """
        self._of_outside += 1
        self.at(when_s, self._from_outside, callback, args)

    def _from_outside(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self._of_outside -= 1
        callback(*args)

    def stand_still(self, process: Hashable) -> None:
        """Hold a process's callbacks from now on."""
        self._held.setdefault(process, [])

    def go_on(self, process: Hashable) -> None:
        """Run a process's callbacks again, first those that were held, in order."""
        self._ready.extend(self._held.pop(process, ()))

    def _hold(self, handle: asyncio.Handle) -> bool:
        """Hold a callback if its process stands still; return whether it does."""
        held = self._held.get(handle._context.get(process_of))  # type: ignore[attr-defined]
        if held is None:
            return False
        held.append(handle)
        return True

    def at_end_of_instant(self, callback: Callable[[], object]) -> None:
        """Call back when this instant has no other work left, before time moves on."""
        self._closing_instant.append(callback)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See :meth:`asyncio.loop.call_soon`."""
        self._check_thread()
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See :meth:`asyncio.loop.call_at`."""
        self._check_thread()
        when = max(when, self._now_s)
        timer = events.TimerHandle(when, callback, args, self, context)
        heappush(self._agenda, (when, next(self._order), timer._run, (), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See :meth:`asyncio.loop.call_later`."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays on the agenda until its moment, and does nothing then."""

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See :meth:`asyncio.loop.call_soon`; no other thread may call this either."""
        return self.call_soon(callback, *args, context=context)

    def _check_thread(self) -> None:
        """Raise RuntimeError on a call from another thread, whose moment depends on the machine."""
        if self._thread_id != threading.get_ident() and self._thread_id is not None:
            raise RuntimeError(
                f"{threading.current_thread().name} calls into a simulation, which runs in one "
                "thread; do the work there, with run_in_executor"
            )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See :meth:`asyncio.loop.call_exception_handler`; a callback's error ends the run."""
        if "handle" in context and self._raised is None:
            self._raised = context.get("exception")
        else:
            super().call_exception_handler(context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Do the work at once, in this thread and in no virtual time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    # --- running

    def _run_once(self) -> None:
        """Run the ready callbacks; if there are none, end the instant, then move to the next."""
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        ready = self._ready
        if not ready:
            agenda = self._agenda
            while agenda and agenda[0][4] is not None and agenda[0][4]._cancelled:
                heappop(agenda)  # otherwise time would move to a cancelled timer
            if self._closing_instant and not (agenda and agenda[0][0] <= self._now_s):
                closing, self._closing_instant = self._closing_instant, []
                for callback in closing:
                    callback()
                return
            if len(agenda) == self._of_outside:
                if not self._stopping:
                    raise Deadlock(*self._account())
                return
            # The entries of this instant run one by one, in order of scheduling. Entries that they
            # add for this instant wait until the callbacks that they make ready have run.
            when_s = self._now_s = agenda[0][0]
            last = next(self._order)
            while agenda and agenda[0][0] == when_s and agenda[0][1] < last:
                _, _, call, args, timer = heappop(agenda)
                if timer is None:
                    self.handled += 1
                    call(*args)
                elif not timer._cancelled:
                    timer._scheduled = False
                    if self._held and self._hold(timer):
                        continue
                    self.handled += 1
                    call()
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and not (self._held and self._hold(handle)):
                self.handled += 1
                handle._run()

    def _account(self) -> tuple[list[str], list[str]]:
        """Return the known reasons of a deadlock, and the waiting tasks with their functions."""
        why = [line for explain in self.explain for line in explain()]
        lines = []
        waiting: defaultdict[str, list[str]] = defaultdict(list)  # names, by where they wait
        for task in asyncio.all_tasks(self):
            # asyncio numbers unnamed tasks, and the numbers differ between processes
            if not task.done() and not task.get_name().startswith("Task-"):
                waiting[_where(task)].append(task.get_name())
        for where, names in sorted(waiting.items(), key=lambda item: (len(item[1]), item[0])):
            names.sort()
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            verb = "waits" if len(names) == 1 else "wait"
            lines.append(f"{', '.join(names[:_MOST_NAMED])}{more} {verb} in {where}")
        return why, lines

    # --- calls that only real time has

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("there is no selector")

    def _write_to_self(self) -> None:
        """Do nothing: this loop never sleeps in a selector, so none has to be woken."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(
            "a simulation has no sockets, pipes or subprocesses; use the simulated network"
        )

    create_connection: Any = _refuse
    create_server: Any = _refuse
    create_datagram_endpoint: Any = _refuse
    connect_accepted_socket: Any = _refuse
    connect_read_pipe: Any = _refuse
    connect_write_pipe: Any = _refuse
    subprocess_exec: Any = _refuse
    subprocess_shell: Any = _refuse
    getaddrinfo: Any = _refuse


def _where(task: asyncio.Task[Any]) -> str:
    """Return the innermost function in which a task waits, leaving asyncio's own out."""
    coroutine: Any = task.get_coro()
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    while isinstance(coroutine := getattr(coroutine, "cr_await", None), CoroutineType):
        if not coroutine.cr_code.co_filename.startswith(_ASYNCIO):
            name = coroutine.__qualname__
    return str(name)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new virtual loop, from time 0 to its end; return its result.

    Raises:
        Deadlock: it can never end; names the waiting tasks.
        KeyboardInterrupt: it was interrupted.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(main)
        except KeyboardInterrupt:
            with suppress(Deadlock):  # the interrupt may have lost the next callback
                runner.close()
            raise
