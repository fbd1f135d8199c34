"""Followers: the calls that a newcomer makes in its program's place until it catches up. No I/O.

A newcomer *follows* the group from its admission, since the others do not wait while it gets the
state of training::

    admitted --> follows: makes the others' calls, contributes nothing, keeps the results in order
             --> has the state: its program's calls are answered by kept results
             --> in step: its program makes a call that has not ended yet. From the next call on it
                 contributes, and the others wait for it

It declares itself in step earlier if it keeps too many bytes, or if its program does not catch up.
The others then wait until it has caught up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from anabranch.net.messages import CallMade, CaughtUp, Signature

_ELEMENT_BYTES = 4
# The others' calls in which a newcomer must catch up: so many for each kept call, and so many more.
_TURNS_EACH, _MORE_TURNS = 4, 16
_MORE_KEPT = 2  # results by which it may fall behind meanwhile


def has_result(future: asyncio.Future[Any]) -> bool:
    """Return whether a future has ended well."""
    return future.done() and not future.cancelled() and future.exception() is None


@dataclass(slots=True)
class FollowedCall:
    """A call that was made in the program's place.

    Args:
        signature: the exchange's terms; None for a gathering that admits sites.
        ended: a future of its result.
    """

    signature: Signature | None
    ended: asyncio.Future[Any]

    @property
    def size_bytes(self) -> int:
        """The size of its result."""
        return 0 if self.signature is None else _ELEMENT_BYTES * self.signature.elements


class Following:
    """The calls that a follower has made, and its program has not.

    Args:
        most_bytes: the most bytes of results to keep; two results may always be kept.

    Attributes:
        is_in_step: whether the others have been told that this site is in step.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._kept: deque[FollowedCall] = deque()
        self._called: dict[int, CallMade] = {}  # the others' calls not made here yet, by place
        self._has_state = False
        self._had = 0  # calls kept when the program got the state
        self._turns = 0  # the others' calls since then
        self._is_there = False  # whether the program has caught up
        self.is_in_step = False

    @property
    def kept_bytes(self) -> int:
        """The size of all kept results."""
        return sum(each.size_bytes for each in self._kept)

    def called(self, message: CallMade) -> None:
        """Note that another site has made a call."""
        self._called[message.place] = message

    def next_call(self, calls_made: int) -> CallMade | None:
        """Return the next call to make in the program's place; None if there is none yet.

        Args:
            calls_made: how many calls this site has made so far.
        """
        for place in [place for place in self._called if place <= calls_made]:
            del self._called[place]
        return self._called.pop(calls_made + 1, None)

    def keep(self, kept: FollowedCall) -> None:
        """Keep a call that was made in the program's place."""
        self._kept.append(kept)
        self._turns += self._has_state

    def has_state(self) -> None:
        """Note that the program has the state of training."""
        if not self._has_state:
            self._has_state = True
            self._had = len(self._kept)

    @property
    def has_kept(self) -> bool:
        """Whether the program's next call has been made in its place."""
        return bool(self._kept)

    @property
    def keeps_exchange(self) -> bool:
        """Whether that call is an exchange."""
        return bool(self._kept) and self._kept[0].signature is not None

    @property
    def admitted(self) -> frozenset[int]:
        """The sites that were admitted by calls which the program has not made yet."""
        admissions = (each.ended for each in self._kept if each.signature is None)
        return frozenset().union(
            *(ended.result().newcomers for ended in admissions if has_result(ended))
        )

    def take(self, signature: Signature | None) -> FollowedCall | None:
        """Return the kept call for the program's next call; None if the two differ.

        Args:
            signature: the terms of the program's exchange; None for a gathering that admits sites.
        """
        if self._kept[0].signature != signature:
            return None
        taken = self._kept.popleft()
        self._is_there |= self._has_state and not taken.ended.done()
        return taken

    def goes_ahead(self) -> None:
        """Note that the program makes a call that no other site is known to have made."""
        self._is_there |= self._has_state

    def step(self) -> CaughtUp | None:
        """Return, once, a message for the others: this site is in step, or they must wait for it.

        They must wait, because a program slower than theirs would never catch up, and one that is
        hardly faster would take too long.
        """
        why = ""
        most_kept, most_turns = self._had + _MORE_KEPT, _TURNS_EACH * self._had + _MORE_TURNS
        if self.is_in_step or self._is_there:
            pass
        elif len(self._kept) > 2 and self.kept_bytes > self._most_bytes:
            why = f"it keeps {self.kept_bytes:,} bytes of results"
        elif self._has_state and (len(self._kept) > most_kept or self._turns > most_turns):
            why = "its program does not catch up"
        else:
            return None
        if self.is_in_step:
            return None
        self.is_in_step = True
        return CaughtUp(len(self._kept), why)
