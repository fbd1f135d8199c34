"""The life of each site, as its scheduler sees it. Pure.

A site is at one stage at a time, and :data:`TABLE` has every change that there is: what happens to
a site at a stage takes it to the next one, and what the table lacks cannot happen.

- **Before the run begins** sites join until there are enough. These are welcomed and prepare their
  part; once all of them are ready, the run begins with them. Sites that have not joined by then
  count as lost, so that all that join later do so in one way.
- **A member** takes part in calls until it has made its last one. It is a member until another
  makes a call that it has not made; then it has left, and relays what has no other way.
- **What is lost** may join again, as another process: it comes, is introduced to its neighbours,
  starts, and asks to be let in. It counts as lost until then; its end harms no call.
- **A site that has left cannot die.** If its connection breaks, the others stop relaying through
  it, and it still counts as left.

Beside its stage a site has a connection, which may be broken for a while or silent, and neighbours
may accuse it. These are no stages: they end with their cause, and none outlasts the site's loss.
Whether a member follows the others' calls, until it is in step, is known to the calls.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from anabranch.scheduler._stages import Stages


class Stage(Enum):
    """How far a site is in its life."""

    ABSENT = "absent"
    JOINED = "joined"
    PREPARING = "preparing"
    READY = "ready"
    MEMBER = "member"
    DEPARTED = "departed"
    LEFT = "left"
    GONE = "gone"
    LOST = "lost"
    CAME = "came"
    INTRODUCED = "introduced"
    STARTED = "started"
    ASKING = "asking"


class Happens(Enum):
    """What can happen to a site."""

    JOINS = "joins"
    IS_LET_GO = "is let go before the run has all that it begins with"
    IS_WELCOMED = "is welcomed, as one of the sites of the start"
    IS_PASSED_OVER = "is not one of the sites of the start"
    IS_READY = "is ready"
    BEGINS = "begins"
    DEPARTS = "has made its last call, and is a member until another makes a further one"
    LEAVES = "has made its last call"
    LEAVES_OTHERS = "has made its last call, and the others go on without it"
    IS_DONE_WITHOUT = "is no member any more, as another has made a further call"
    IS_LOST = "is lost"
    IS_INTRODUCED = "is introduced to its neighbours"
    STARTS = "starts, as its neighbours know of it"
    ASKS = "asks to be let in"
    IS_LET_IN = "is let in"
    IS_FORGOTTEN = "goes before it was let in"


S, H = Stage, Happens
TABLE: dict[Stage, dict[Happens, Stage]] = {
    S.ABSENT: {H.JOINS: S.JOINED, H.IS_PASSED_OVER: S.LOST},
    S.JOINED: {H.IS_LET_GO: S.ABSENT, H.IS_WELCOMED: S.PREPARING, H.IS_PASSED_OVER: S.CAME},
    S.PREPARING: {H.IS_READY: S.READY, H.IS_LOST: S.LOST},
    S.READY: {H.BEGINS: S.MEMBER, H.IS_LOST: S.LOST},
    S.MEMBER: {
        H.DEPARTS: S.DEPARTED,
        H.LEAVES: S.LEFT,
        H.LEAVES_OTHERS: S.GONE,
        H.IS_LOST: S.LOST,
    },
    S.DEPARTED: {H.IS_DONE_WITHOUT: S.LEFT, H.IS_LOST: S.GONE},
    S.LEFT: {H.IS_LOST: S.GONE},
    S.GONE: {H.JOINS: S.CAME},
    S.LOST: {H.JOINS: S.CAME},
    S.CAME: {H.IS_INTRODUCED: S.INTRODUCED, H.IS_FORGOTTEN: S.LOST},
    S.INTRODUCED: {H.STARTS: S.STARTED, H.IS_FORGOTTEN: S.LOST},
    S.STARTED: {H.ASKS: S.ASKING, H.IS_LET_IN: S.MEMBER, H.IS_FORGOTTEN: S.LOST},
    S.ASKING: {H.IS_LET_IN: S.MEMBER, H.IS_FORGOTTEN: S.LOST},
}
"""What each thing that happens to a site at a stage makes of it."""

NEWCOMERS = frozenset({S.CAME, S.INTRODUCED, S.STARTED, S.ASKING})
"""Stages of sites that have joined a run that goes on, and are no members yet."""

HAS_LEFT = frozenset({S.DEPARTED, S.LEFT, S.GONE})
"""Stages of sites that make no further call."""

DONE_WITHOUT = frozenset({S.GONE, S.LOST}) | NEWCOMERS
"""Stages of sites without which the run goes on."""


class Lives(Stages[Stage, Happens]):
    """The stages of all sites.

    Args:
        size: how many sites there are.
    """

    def __init__(self, size: int) -> None:
        super().__init__("site", TABLE, range(size), Stage.ABSENT)
        self._size = size

    def restore(
        self, lost: Collection[int], left: Collection[int], departed: Collection[int]
    ) -> None:
        """Take up the lives of a run whose scheduler was started again.

        Args:
            lost: those without which it goes on.
            left: those that make no further call.
            departed: those of them that are members.
        """
        for site in range(self._size):
            stage = S.LOST if site in lost else S.MEMBER
            if site in left:
                stage = S.GONE if site in lost else S.LEFT
            self.put(site, S.DEPARTED if site in departed else stage)

    def sites(self, *stages: Stage) -> frozenset[int]:
        """Return the sites at some stages."""
        return frozenset(sorted(self.at(*stages)))  # sorted: it is gone through in the same order

    @property
    def newcomers(self) -> frozenset[int]:
        """Those that have joined a run that goes on, and are no members yet."""
        return self.sites(*NEWCOMERS)

    @property
    def lost(self) -> frozenset[int]:
        """Those without which the run goes on, newcomers among them."""
        return self.sites(*DONE_WITHOUT)

    @property
    def left(self) -> frozenset[int]:
        """Those that make no further call."""
        return self.sites(*HAS_LEFT)

    @property
    def departed(self) -> frozenset[int]:
        """Those that make no further call, and are members yet."""
        return self.sites(Stage.DEPARTED)

    @property
    def has_formed(self) -> bool:
        """Whether the sites of the start are chosen."""
        return not self.at(Stage.ABSENT, Stage.JOINED)

    @property
    def are_ready(self) -> bool:
        """Whether all sites that were chosen for the start are ready."""
        return self.has_formed and not self.at(Stage.PREPARING)
