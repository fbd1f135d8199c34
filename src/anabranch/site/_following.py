"""What a newcomer keeps of the calls that others make before its program does. State alone, no I/O.

A newcomer *follows* the group from when it is let in. While it gets the state of training the
others go on: it makes their calls too, with nothing of its own, and keeps what comes of them, in
order. Once its program has the state, its own calls are answered by these, until it makes one that
has not ended yet: then it is where the others are, so it is *in step*, and takes part like any
other from the next call on. It says so earlier where it keeps too much, or where its program does
not catch up; the others then wait until it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from anabranch.net.messages import Called, InStep, Signature

_ELEMENT_BYTES = 4
_TURNS_EACH, _MORE_TURNS = 4, 16  # of the others, in which a newcomer may catch up
_MORE_KEPT = 2  # results, by which it may fall behind meanwhile


@dataclass(slots=True)
class Kept:
    """A call that was made in the program's place.

    Args:
        signature: what is exchanged; None where others were let in.
        ended: what came of it.
    """

    signature: Signature | None
    ended: asyncio.Future[Any]

    @property
    def size_bytes(self) -> int:
        """What its result takes."""
        return 0 if self.signature is None else _ELEMENT_BYTES * self.signature.elements


class Following:
    """The calls that a site that follows has made, and its program has not.

    Args:
        most_bytes: of results that may be kept; two may always be.

    Attributes:
        is_in_step: whether the others have been told that this site takes part from now on.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._kept: deque[Kept] = deque()
        self._called: dict[int, Called] = {}  # by place; not made here yet
        self._has_state = False
        self._had = 0  # calls that were kept then
        self._turns = 0  # the others' calls since
        self._is_there = False  # where the others are
        self.is_in_step = False

    @property
    def kept_bytes(self) -> int:
        """What the results take that are kept."""
        return sum(each.size_bytes for each in self._kept)

    def called(self, message: Called) -> None:
        """Take note that another site was the first to make a call."""
        self._called[message.place] = message

    def next_call(self, calls_made: int) -> Called | None:
        """Return what to call for in the program's place; None for nothing yet.

        Args:
            calls_made: by this site, so far.
        """
        for place in [place for place in self._called if place <= calls_made]:
            del self._called[place]
        return self._called.pop(calls_made + 1, None)

    def keep(self, kept: Kept) -> None:
        """Keep what comes of a call that was made in the program's place."""
        self._kept.append(kept)
        self._turns += self._has_state

    def has_state(self) -> None:
        """Take note that the program has the state, and goes on from it."""
        if not self._has_state:
            self._has_state = True
            self._had = len(self._kept)

    @property
    def has_kept(self) -> bool:
        """Whether the program's next call has been made."""
        return bool(self._kept)

    @property
    def keeps_exchange(self) -> bool:
        """Whether that call is an exchange."""
        return bool(self._kept) and self._kept[0].signature is not None

    def take(self, signature: Signature | None) -> Kept | None:
        """Return what answers the program's next call; None where it is not the call that was made.

        Args:
            signature: what the program would exchange; None where it would let others in.
        """
        if self._kept[0].signature != signature:
            return None
        taken = self._kept.popleft()
        self._is_there |= self._has_state and not taken.ended.done()
        return taken

    def goes_ahead(self) -> None:
        """Take note that the program makes a call that no other site has made, for all it knows."""
        self._is_there |= self._has_state

    def step(self) -> InStep | None:
        """Return what to tell the others, once, if this site is in step, or has to be waited for.

        A program that is slower than the others' steps would never catch up, and one that is hardly
        faster would be long about it.
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
        return InStep(len(self._kept), why)
