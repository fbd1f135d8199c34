"""How the buffer of each exchange is cut, and which tree carries its next chunks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.net.messages import Dispatched, Progress
from anabranch.plan import Plan
from anabranch.scheduler._dispatch import Dispatcher
from anabranch.scheduler.calls._answer import Granted

Dispatching = Callable[[Plan, int, int], tuple[int, int]]
"""How chunks are dispatched while an exchange goes on: called with the plan, the elements of the
buffer and the most of a chunk, returns how many chunks there are, and how many of them may be under
way."""

Chunking = Callable[[Plan, int], int]
"""How finely buffers are cut: called with the plan and the elements of the buffer, returns the most
elements of a chunk."""

_REMEMBERED = 64  # plans and sizes


class Dealing:
    """The chunks of each exchange that is held, by the number that they carry.

    Args:
        chunking: the most elements of a chunk, by the plan and the elements of the buffer.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand.

    Both are asked once for a plan and a size: a plan of many trees takes milliseconds.
    """

    def __init__(self, chunking: Chunking, dispatching: Dispatching | None) -> None:
        self._chunking = chunking
        self._dispatching = dispatching
        # By the plan's identity and the elements; each has its plan, so that no other gets its id.
        self._cuts: dict[tuple[int, int], tuple[Plan, int, tuple[int, int] | None]] = {}
        self._chunk_elements: dict[int, int] = {}  # by exchange
        self._dispatchers: dict[int, Dispatcher] = {}  # by exchange

    def begin(self, granted: Granted, members: tuple[int, ...]) -> None:
        """Cut the buffer of an exchange that begins.

        What one site has for others is dealt beforehand: nothing is gained by another tree.
        """
        signature, plan = granted.signature, granted.plan
        chunk_elements, dispatched = self._cut(plan, signature.elements)
        self._chunk_elements[granted.exchange] = chunk_elements
        all_contribute = signature.source is None and not signature.receivers
        if dispatched is not None and all_contribute:
            shares = [tree.share for tree in plan.trees]
            self._dispatchers[granted.exchange] = Dispatcher(shares, members, *dispatched)

    def _cut(self, plan: Plan, elements: int) -> tuple[int, tuple[int, int] | None]:
        """Return the most elements of a chunk, and what ``dispatching`` says of such chunks."""
        known = self._cuts.get((id(plan), elements))
        if known is None:
            chunk_elements, dispatched = self._chunking(plan, elements), None
            if self._dispatching is not None:
                dispatched = self._dispatching(plan, elements, chunk_elements)
            if len(self._cuts) == _REMEMBERED:
                del self._cuts[next(iter(self._cuts))]
            known = self._cuts[id(plan), elements] = plan, chunk_elements, dispatched
        return known[1:]

    def restore(self, exchange: int, chunk_elements: int) -> None:
        """Take up an exchange that was cut before a restart."""
        self._chunk_elements[exchange] = chunk_elements

    def chunk_elements(self, exchange: int) -> int:
        """Return the most elements of a chunk of an exchange that is held."""
        return self._chunk_elements[exchange]

    def first(self, exchange: int) -> tuple[int, ...] | None:
        """Return the trees of the first chunks; None where all are dealt beforehand."""
        dispatcher = self._dispatchers.get(exchange)
        return None if dispatcher is None else dispatcher.first

    def progress(self, site: int, message: Progress, now_s: float) -> list[tuple[int, Dispatched]]:
        """Dispatch further chunks, as others have ended; return which sites are told."""
        dispatcher = self._dispatchers.get(message.exchange)
        if dispatcher is None:
            return []
        trees = dispatcher.progress(site, message.finished, now_s)
        if not trees:
            return []
        more = Dispatched(message.exchange, trees)
        return [(member, more) for member in dispatcher.members]

    def stop_dispatching(self, exchange: int) -> None:
        """Deal no further chunks of an exchange: it is interrupted."""
        self._dispatchers.pop(exchange, None)

    def forget(self, exchange: int) -> None:
        """Forget an exchange that has ended."""
        self._dispatchers.pop(exchange, None)
        self._chunk_elements.pop(exchange, None)

    def forget_all_but(self, held: Collection[int]) -> None:
        """Forget the exchanges that are not held any more."""
        for exchange in self._chunk_elements.keys() - held:
            self.forget(exchange)
