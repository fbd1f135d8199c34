"""Small calls that this site makes at once, which share exchanges as far as all members can.

Where more calls are under way than the network needs, a further small call waits in *line*. When
one of those under way ends, the site asks for the next exchange with the sizes of all calls in
line. Once every member has asked, the scheduler grants one exchange for the calls that all of them
have in line. No member joins calls that another may not make before it has a result.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from anabranch.exchange.arithmetic import Buffer, Floats
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.messages import MOST_JOINED

_MOST_ELEMENTS = 1 << 17  # of a call that may be joined
_MOST_JOINED_ELEMENTS = 1 << 21
_ALONE = 32  # calls that go alone after one with which no other could share an exchange


def may_join(terms: Terms) -> bool:
    """Return whether a call's terms let it share an exchange."""
    is_sum = terms.op in (Op.MEAN, Op.SUM) and terms.wire == Wire.FLOAT32
    takes_part = terms.source is None and not terms.receivers and not terms.tensors
    return is_sum and takes_part and terms.elements <= _MOST_ELEMENTS


class Joined:
    """The buffers of several calls, as the buffer of one exchange.

    Args:
        buffers: of the calls, in order.
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
        pieces = [self._buffers[at].read(*place) for at, place in self._places(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        done = 0
        for at, (begin, end) in self._places(start, start + len(values)):
            self._buffers[at].write(begin, values[done : done + end - begin])
            done += end - begin

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        places = self._places(start, stop)
        if len(places) > 1:
            return None
        at, place = places[0]
        return self._buffers[at].memory(*place, wire)

    def _places(self, start: int, stop: int) -> list[tuple[int, tuple[int, int]]]:
        """Return which elements of which buffers these are."""
        at = bisect_right(self.starts, start, hi=len(self._buffers)) - 1
        places = []
        while True:
            begin, end = self.starts[at], self.starts[at + 1]
            places.append((at, (start - begin, min(stop, end) - begin)))
            if stop <= end:
                return places
            start, at = end, at + 1


@dataclass(slots=True)
class InLine:
    """A call in line. One without terms is not joined, and begins by itself in its turn.

    Args:
        terms, weight, buffer: of the call.
    """

    terms: Terms | None = None
    weight: float = 1.0
    buffer: Buffer | None = None
    ended: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The call's round; without terms, that its turn has come."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Without terms: set once the call has made its request."""

    @property
    def elements(self) -> int:
        """The number of elements of its buffer."""
        return 0 if self.terms is None else self.terms.elements

    def end(self, done: object) -> None:
        """Return its round to the caller, unless that has given up."""
        if not self.ended.done():
            self.ended.set_result(done)

    def fail(self, error: BaseException) -> None:
        """Raise an error at the caller, unless that has given up."""
        if self.ended.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.ended.cancel()
        else:
            self.ended.set_exception(error)


class Line:
    """The calls of a channel that wait for those under way, in the order of the program."""

    def __init__(self) -> None:
        self.calls: deque[InLine] = deque()
        self.is_served = False  # a task makes these calls
        self._under_way = 0
        self._fewer: asyncio.Future[None] | None = None
        self._alone = 0  # how many calls in line go alone next

    def is_full(self, at_once: int) -> bool:
        """Return whether further small calls would only add to what calls cost.

        Args:
            at_once: how many calls fill the time of an exchange; 0 for any number.
        """
        return 0 < at_once <= self._under_way

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Take note of a small call, or of some that share an exchange, while under way."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if self._fewer is not None and not self._fewer.done():
                self._fewer.set_result(None)

    async def until_fewer(self, at_once: int) -> None:
        """Wait until a further call is worth its cost; see ``is_full``."""
        while self.is_full(at_once):
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer

    @property
    def goes_alone(self) -> bool:
        """Whether the first call in line goes alone, and waits for none under way."""
        return self._alone > 0

    def asked(self, calls: int, shared: int) -> None:
        """Take note of an exchange that was asked for.

        If none of the calls in line could share it, another member waits for each result, or
        follows. The next calls then go alone: asked for one after another, they would take longer.

        Args:
            calls: how many in line might have shared it.
            shared: how many do.
        """
        if calls > 1:
            self._alone = _ALONE if shared == 1 else 0
        elif self._alone:
            self._alone -= 1

    def fail(self, error: BaseException) -> None:
        """Raise an error at the callers in line."""
        while self.calls:
            self.calls.popleft().fail(error)

    def run(self) -> list[InLine]:
        """Return the first call in line, and those after it that may share its exchange."""
        run: list[InLine] = []
        elements = 0
        for each in islice(self.calls, MOST_JOINED):
            elements += each.elements
            first = run[0] if run else each
            is_alike = each.terms is not None and each.weight == first.weight
            if run and not (is_alike and _op(each) == _op(first)):
                break
            if run and elements > _MOST_JOINED_ELEMENTS:
                break
            run.append(each)
        return run


def _op(call: InLine) -> Op | None:
    return None if call.terms is None else call.terms.op
