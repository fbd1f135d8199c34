"""The members of a group, as the calls that a program has waited for show them.

A call may return before it is settled, and only the settlement tells which members are left. So a
program that reads the members waits for the settlements of all calls before. All members then read
the same at one place of the program.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

from anabranch.group._thread import LoopThread
from anabranch.net.errors import NetError
from anabranch.site.round import ExchangeError, Round


class Present:
    """The members at one place of a program.

    Args:
        thread: runs the settlements.
        flush: sends this member's delayed messages, of which settlements need some; called in the
            thread.
        members: at the beginning.
        admissions: how many admissions there were before.

    Attributes:
        latest: the members as far as settlements have been waited for; there may be fewer.
        admissions: how many admissions there were.
    """

    def __init__(
        self,
        thread: LoopThread,
        flush: Callable[[], None],
        members: Sequence[int],
        admissions: int = 0,
    ) -> None:
        self._thread = thread
        self._flush = flush
        self.latest = tuple(members)
        self.admissions = admissions
        self._unsettled: deque[tuple[int, Round]] = deque()
        self._lock = Lock()

    @property
    def sites(self) -> tuple[int, ...]:
        """The members. Waits for settlements, but not in the loop's thread, which brings them."""
        if not self._thread.is_current:
            with suppress(NetError, asyncio.CancelledError):  # the next call raises it
                self.settle()
        return self.latest

    @property
    def known(self) -> tuple[tuple[int, ...], int]:
        """``latest``, and the admissions by then."""
        with self._lock:
            return self.latest, self.admissions

    def settle(self) -> None:
        """Wait for the settlements of all calls that the program has waited for.

        Raises:
            ExchangeError, RunAborted: the group has ended, or a call has failed.
        """
        while (entry := self._first()) is not None:
            try:
                settled = self.settled(entry[1])
            except ExchangeError:
                self._take(entry)  # the group goes on
                raise
            self._take(entry, settled.members)

    def settled(self, done: Round) -> Round:
        """Return a call's round once it is settled; in the loop's thread, as far as it is now."""
        settling = done.settlement
        if settling is None:
            return done
        if settling.done():  # perhaps the thread has ended
            return settling.result()
        return done if self._thread.is_current else self._thread.run(self._awaited(settling))

    async def _awaited(self, settling: asyncio.Future[Round]) -> Round:
        self._flush()
        return await asyncio.shield(settling)

    def ended(self, admissions: int, done: Round) -> None:
        """Take note of a call that the program has waited for.

        Args:
            admissions: the count of admissions when the call began. A later admission may have let
                sites in, and this call does not know these.
            done: the call's round.
        """
        if done.settlement is None:
            self.are_left(admissions, done.members)
        else:
            self._unsettled.append((admissions, done))
        while (entry := self._first()) is not None and _is_settled(entry[1]):  # none adds up
            self._take(entry, self.settled(entry[1]).members)

    def _first(self) -> tuple[int, Round] | None:
        with self._lock:
            return self._unsettled[0] if self._unsettled else None

    def _take(self, entry: tuple[int, Round], members: Sequence[int] = ()) -> None:
        """Remove an entry that came first, and the members lost by its end.

        Another thread may have done so.
        """
        with self._lock:
            if self._unsettled and self._unsettled[0] is entry:
                self._unsettled.popleft()
                self._are_left(entry[0], members)

    def are_left(self, admissions: int, members: Sequence[int]) -> None:
        """Remove the members that the end of a call shows to be lost.

        Args:
            admissions: see ``ended``.
            members: the call's members; empty where a loss ends the group.
        """
        with self._lock:
            self._are_left(admissions, members)

    def _are_left(self, admissions: int, members: Sequence[int]) -> None:
        if members and admissions == self.admissions:
            self.latest = tuple(site for site in self.latest if site in members)

    def admitted(self, members: Sequence[int]) -> None:
        """Take the members after an admission, before which all calls were settled."""
        with self._lock:
            self.latest = tuple(members)
            self.admissions += 1


def _is_settled(done: Round) -> bool:
    settling = done.settlement
    assert settling is not None, "only such rounds are kept"
    return settling.done() and not settling.cancelled() and settling.exception() is None
