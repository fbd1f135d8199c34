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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.exchange.arithmetic import Buffer, Floats
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.messages import MOST_SHARING

if TYPE_CHECKING:
    from anabranch.site.collectives import Round

_MOST_ELEMENTS = 1 << 17  # of a small call
_MOST_SHARED_ELEMENTS = 1 << 21  # of an exchange
_ALONE = 32  # how many calls go alone after an exchange that no other call in line could share


def is_small(terms: Terms) -> bool:
    """Return whether a call may share an exchange, by its terms: a small sum or mean."""
    is_sum = terms.op in (Op.MEAN, Op.SUM) and terms.wire == Wire.FLOAT32
    of_all = terms.source is None and not terms.receivers and not terms.tensors
    return is_sum and of_all and terms.elements <= _MOST_ELEMENTS


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
    """Another call, which waits for the calls in line before it, and holds up those after it.

    Args:
        ended: done when its turn has come.
        has_asked: set once the call has made its request.
    """

    ended: asyncio.Future[None] = field(default_factory=_future)
    has_asked: asyncio.Event = field(default_factory=asyncio.Event)


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

    Attributes:
        calls: see above.
        is_served: whether a task makes these calls. Until it has ended, other calls wait in line.
    """

    def __init__(self) -> None:
        self.calls: deque[SmallCall | Turn] = deque()
        self.is_served = False
        self._under_way = 0
        self._fewer: asyncio.Future[None] | None = None  # awaited by the task that serves
        self._alone = 0  # how many calls go alone next

    def is_full(self, most_alone: int) -> bool:
        """Return whether so many small exchanges are under way; never if that is 0."""
        return 0 < most_alone <= self._under_way

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count an exchange of one small call or several, while it is under way."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if self._fewer is not None and not self._fewer.done():
                self._fewer.set_result(None)

    async def until_fewer(self, most_alone: int) -> None:
        """Wait until fewer small exchanges are under way, if calls do not go alone."""
        while not self._alone and self.is_full(most_alone):
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer

    def sharable(self, first: SmallCall) -> list[SmallCall]:
        """Return the first call in line, and those behind it that may share its exchange."""
        calls, elements = [first], first.terms.elements
        if self._alone:
            return calls
        for each in islice(self.calls, 1, MOST_SHARING):
            if not isinstance(each, SmallCall) or not each.is_like(first):
                break
            elements += each.terms.elements
            if elements > _MOST_SHARED_ELEMENTS:
                break
            calls.append(each)
        return calls

    def asked(self, calls: int, sharing: int) -> None:
        """Take note of an exchange that was asked for.

        If none of the calls behind the first could share it, another member waits for each result,
        or follows. The next calls then go alone. To wait for each grant would take longer than an
        exchange of their own.

        Args:
            calls: how many in line might have shared it.
            sharing: how many do.
        """
        if calls > 1:
            self._alone = _ALONE if sharing == 1 else 0
        elif self._alone:
            self._alone -= 1
