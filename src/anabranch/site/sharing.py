"""Small calls that a site makes at once share exchanges, as far as all members have made them.

An exchange of a few bytes costs a site much more than its bytes. Where several are under way, a
further small call waits in *line*. When one of those ends, the site asks for an exchange for the
first calls in line. The scheduler waits until every member has asked. It grants the exchange for
those calls that lead the line of every member. So a call never waits for one that another member
makes only after a result.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from anabranch.exchange.arithmetic import Buffer, Floats
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.messages import MOST_SHARING
from anabranch.overlay import Overlay
from anabranch.site.round import Round

SMALL_CALL_S = 0.0003
"""What a small call of its own costs a site, seconds of a core."""

T = TypeVar("T")

_MOST_ELEMENTS = 1 << 17  # of a small call
_MOST_SHARED_ELEMENTS = 1 << 21  # of an exchange
_LEAST_ALONE = 2
_ALONE = 32  # how many calls go alone after an exchange that no other call in line could share


def is_small(terms: Terms) -> bool:
    """Return whether a call may share an exchange, by its terms: a small sum or mean."""
    is_sum = terms.op in (Op.MEAN, Op.SUM) and terms.wire == Wire.FLOAT32
    of_all = terms.source is None and not (terms.receivers or terms.tensors or terms.calls)
    return is_sum and of_all and terms.elements <= _MOST_ELEMENTS


def most_alone(overlay: Overlay) -> int:
    """Return how many small exchanges may be under way before further calls share one.

    A site makes about so many in the time of an exchange and a grant, and two more.

    Args:
        overlay: the links and their latencies. An exchange is taken to cross two links each way,
            and a grant as many.
    """
    latency_s = max((link.latency_s for link in overlay.links), default=0.0)
    return _LEAST_ALONE + round(8 * latency_s / SMALL_CALL_S)


class SharedBuffer:
    """The buffers of several calls, as the buffer of one exchange.

    Args:
        buffers: of the calls, in order.

    Attributes:
        starts: where each of them begins, in elements, and the end.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = buffers
        self.starts = [0]
        for each in buffers:
            self.starts.append(self.starts[-1] + each.elements)

    @property
    def elements(self) -> int:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        return self.starts[-1]

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        pieces = [buffer.read(*piece) for buffer, piece in self._pieces(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        done = 0
        for buffer, (begin, end) in self._pieces(start, start + len(values)):
            buffer.write(begin, values[done : done + end - begin])
            done += end - begin

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        pieces = self._pieces(start, stop)
        if len(pieces) > 1:
            return None
        buffer, piece = pieces[0]
        return buffer.memory(*piece, wire)

    def _pieces(self, start: int, stop: int) -> list[tuple[Buffer, tuple[int, int]]]:
        """Return the pieces of a range: each a buffer, and the range of that buffer's elements."""
        at = bisect_right(self.starts, start, hi=len(self._buffers)) - 1
        pieces = []
        while True:
            begin, end = self.starts[at], self.starts[at + 1]
            pieces.append((self._buffers[at], (start - begin, min(stop, end) - begin)))
            if stop <= end:
                return pieces
            start, at = end, at + 1


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class SmallCall:
    """A small call in line.

    Args:
        terms, weight, buffer: of the call.
        ended: its round.
    """

    terms: Terms
    weight: float
    buffer: Buffer
    ended: asyncio.Future[Round] = field(default_factory=_future)

    def is_like(self, other: SmallCall) -> bool:
        """Return whether two calls may share an exchange."""
        return (self.terms.op, self.weight) == (other.terms.op, other.weight)

    def end(self, done: Round) -> None:
        """Return its round to the caller, unless that has given up."""
        if not self.ended.done():
            self.ended.set_result(done)


@dataclass(slots=True)
class Turn:
    """Another call, whose request is made in its turn, even if its caller has given up.

    Args:
        request: makes the request.
        ended: what that returns.
    """

    request: Callable[[], Any]
    ended: asyncio.Future[Any] = field(default_factory=_future)

    def come(self) -> None:
        """Make the request."""
        try:
            made = self.request()
        except Exception as error:
            fail(self, error)
        else:
            if not self.ended.done():
                self.ended.set_result(made)


def fail(call: SmallCall | Turn, error: BaseException) -> None:
    """Raise an error at the caller of a call in line, unless that has given up."""
    if call.ended.done():
        return
    if isinstance(error, asyncio.CancelledError):
        call.ended.cancel()
    else:
        call.ended.set_exception(error)


class Line:
    """The calls of a channel that wait for those under way, in the order of the program.

    Args:
        ask: asks for the next exchange, for some calls; returns its number, and how many of them
            share it, as soon as that is known.
        share: runs the exchange of a number for the calls that share it, and ends them.
        most_alone: returns how many small exchanges may be under way before calls wait; 0: calls
            never wait.

    Attributes:
        is_served: whether calls are in line. Others then wait behind them.
    """

    def __init__(
        self,
        ask: Callable[[list[SmallCall]], Awaitable[tuple[int, int]]],
        share: Callable[[int, list[SmallCall]], Coroutine[Any, Any, None]],
        most_alone: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._share = share
        self._most_alone = most_alone
        self._calls: deque[SmallCall | Turn] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_served = False
        self._under_way = 0
        self._fewer: asyncio.Future[None] | None = None  # awaited by the task that serves
        self._alone = 0  # how many calls go alone next

    @property
    def is_full(self) -> bool:
        """Whether so many small exchanges are under way that a further call waits."""
        return 0 < self._most_alone() <= self._under_way

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a small exchange that runs beside the line."""
        self._under_way += 1
        try:
            yield
        finally:
            self._ends()

    async def wait(self, call: SmallCall) -> Round:
        """Wait in line for an exchange, and return its round."""
        self._put(call)
        return await call.ended

    async def in_turn(self, request: Callable[[], T]) -> T:
        """Make the request of another call after those in line, and before those of later calls."""
        if not self.is_served:
            return request()
        turn = Turn(request)
        self._put(turn)
        made: T = await turn.ended
        return made

    def close(self) -> None:
        """Cancel the calls in line, and those that share an exchange."""
        for each in self._tasks:
            each.cancel()
        self._fail(asyncio.CancelledError())

    def _put(self, call: SmallCall | Turn) -> None:
        self._calls.append(call)
        if not self.is_served:
            self.is_served = True
            self._run(self._serve())

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ends(self, _: object = None) -> None:
        self._under_way -= 1
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    async def _serve(self) -> None:
        """Make the calls in line, in order, until there are none."""
        try:
            while self._calls:
                first = self._calls[0]
                if isinstance(first, Turn):
                    self._calls.popleft()
                    first.come()
                else:
                    await self._serve_small(first)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.is_served = False

    async def _serve_small(self, first: SmallCall) -> None:
        """Make the first call in line, with those behind it that may share its exchange."""
        while not self._alone and self.is_full:
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer
        calls = self._sharable(first)
        number, sharing = await self._ask(calls)
        self._note(len(calls), sharing)
        for _ in range(sharing):  # only now is it known how many leave the line
            self._calls.popleft()
        self._under_way += 1
        self._run(self._share(number, calls[:sharing])).add_done_callback(self._ends)

    def _fail(self, error: BaseException) -> None:
        while self._calls:
            fail(self._calls.popleft(), error)

    def _sharable(self, first: SmallCall) -> list[SmallCall]:
        """Return the first call in line, and those behind it that may share its exchange."""
        calls, elements = [first], first.terms.elements
        if self._alone:
            return calls
        for each in islice(self._calls, 1, MOST_SHARING):
            if not isinstance(each, SmallCall) or not each.is_like(first):
                break
            elements += each.terms.elements
            if elements > _MOST_SHARED_ELEMENTS:
                break
            calls.append(each)
        return calls

    def _note(self, calls: int, sharing: int) -> None:
        """Let the next calls go alone, if no call behind the first could share its exchange.

        Another member then waits for each result, or follows. To wait for each grant would take
        longer than an exchange of their own.

        Args:
            calls: how many in line might have shared it.
            sharing: how many do.
        """
        if calls > 1:
            self._alone = _ALONE if sharing == 1 else 0
        elif self._alone:
            self._alone -= 1
