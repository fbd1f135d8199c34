"""How the buffer of each exchange is cut into chunks, and which trees carry them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.exchange.terms import planned_elements
from anabranch.net.messages import Dispatched, Progress
from anabranch.plan import Plan, interleave
from anabranch.scheduler._dispatch import Dispatcher
from anabranch.scheduler.calls._answer import Granted
from anabranch.scheduler.calls._leases import Cut

Dispatching = Callable[[Plan, int, int, float], tuple[int, int]]
"""How chunks are dispatched during an exchange. Called with the plan, the elements of the buffer,
the most elements of a chunk, and the longest round trip between a member and the scheduler, in
seconds. Returns the number of chunks, and the most under way at once."""

Chunking = Callable[[Plan, int], int]
"""How finely buffers are cut. Called with the plan and the elements of the buffer. Returns the most
elements of a chunk."""

_REMEMBERED = 64  # pairs of a plan and a size whose cut is kept


class Dealing:
    """The chunks of each exchange that is held, by the number that they carry.

    Args:
        chunking: returns the most elements of a chunk.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand.

    Both are called once for a plan, a size and a round trip: a plan of many trees takes
    milliseconds.
    """

    def __init__(self, chunking: Chunking, dispatching: Dispatching | None) -> None:
        self._chunking = chunking
        self._dispatching = dispatching
        # By the plan's identity, the elements and the round trip. The value keeps its plan alive: a
        # later plan could otherwise get the same identity, and the wrong cut.
        self._cuts: dict[tuple[int, int, float], Cut] = {}
        self._round_trips_s: dict[int, float] = {}  # by site
        self._chunk_elements: dict[int, int] = {}  # by exchange
        self._dispatchers: dict[int, Dispatcher] = {}  # by exchange

    def begin(self, granted: Granted, members: tuple[int, ...]) -> None:
        """Cut the buffer of an exchange that begins.

        A broadcast or a transfer is dealt beforehand: it gains nothing from another tree.
        """
        signature, plan = granted.signature, granted.plan
        elements = planned_elements(signature)
        cut = granted.cut or self.cut(plan, elements, members)
        chunk_elements, dispatched = cut.chunk_elements, cut.dispatched
        self._chunk_elements[granted.exchange] = chunk_elements
        all_contribute = signature.source is None and not signature.receivers
        if dispatched is not None and all_contribute:
            shares = [tree.share for tree in plan.trees]
            self._dispatchers[granted.exchange] = Dispatcher(shares, members, *dispatched)

    def cut(self, plan: Plan, elements: int, members: Collection[int]) -> Cut:
        """Return how the chunks of a buffer go, among these members."""
        round_trip_s = _rounded(self.round_trip_s(members))
        known = self._cuts.get((id(plan), elements, round_trip_s))
        if known is None:
            chunk_elements, dispatched = self._chunking(plan, elements), None
            if self._dispatching is not None:
                dispatched = self._dispatching(plan, elements, chunk_elements, round_trip_s)
            if len(self._cuts) == _REMEMBERED:
                del self._cuts[next(iter(self._cuts))]
            known = Cut(plan, chunk_elements, dispatched)
            self._cuts[id(plan), elements, round_trip_s] = known
        return known

    def round_trip_s(self, members: Collection[int]) -> float:
        """Return the longest round trip that a member tells, seconds."""
        return max((self._round_trips_s.get(each, 0.0) for each in members), default=0.0)

    def hear_round_trip(self, site: int, seconds: float) -> None:
        """Take a site's round trip to the scheduler."""
        self._round_trips_s[site] = seconds

    def restore(self, exchange: int, chunk_elements: int) -> None:
        """Restore an exchange that was cut before a restart."""
        self._chunk_elements[exchange] = chunk_elements

    def chunk_elements(self, exchange: int) -> int:
        """Return the most elements of a chunk of a held exchange."""
        return self._chunk_elements[exchange]

    def first(self, exchange: int) -> tuple[int, ...] | None:
        """Return the trees of the first chunks; None if all chunks are dealt beforehand."""
        dispatcher = self._dispatchers.get(exchange)
        return None if dispatcher is None else dispatcher.first

    @staticmethod
    def first_of(cut: Cut) -> tuple[int, ...] | None:
        """Return what ``first`` does, of an exchange that has not begun."""
        if cut.dispatched is None:
            return None
        chunks, window = cut.dispatched
        return interleave([tree.share for tree in cut.plan.trees], min(window, chunks))

    def progress(self, site: int, message: Progress, now_s: float) -> list[tuple[int, Dispatched]]:
        """Note the chunks that ended at a site; return the messages that deal further ones."""
        dispatcher = self._dispatchers.get(message.exchange)
        if dispatcher is None:
            return []
        trees = dispatcher.progress(site, message.finished, now_s)
        if not trees:
            return []
        more = Dispatched(message.exchange, trees)
        return [(member, more) for member in dispatcher.members]

    def stop_dispatching(self, exchange: int) -> None:
        """Deal no further chunks of an exchange, since it is interrupted."""
        self._dispatchers.pop(exchange, None)

    def forget(self, exchange: int) -> None:
        """Forget an exchange that has ended."""
        self._dispatchers.pop(exchange, None)
        self._chunk_elements.pop(exchange, None)

    def forget_all_but(self, held: Collection[int]) -> None:
        """Forget all exchanges but those that are held."""
        for exchange in self._chunk_elements.keys() - held:
            self.forget(exchange)


def _rounded(round_trip_s: float) -> float:
    """Return a round trip with one digit, so that few cuts are made anew."""
    return float(f"{round_trip_s:.1g}")
