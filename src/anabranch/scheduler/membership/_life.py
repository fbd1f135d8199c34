"""The life of each site, as its scheduler sees it: one table. Pure.

A site is at one stage at a time. :data:`TABLE` lists every change of stage. An event that the table
lacks at a stage is a bug of the scheduler, and raises an error. The main changes::

    absent ──joins──▶ joined ──is welcomed──▶ preparing ──is ready──▶ ready ──begins──▶ member

    member ──departs──▶ departed ──is excluded──▶ left ──is lost──▶ gone
      │
      └──is lost──▶ lost ◀──ends early── came, introduced, started, asking
                     │
                     └──joins──▶ came ─▶ introduced ─▶ started ─▶ asking ──is admitted──▶ member

- **The start.** Sites join until there are enough. The scheduler welcomes these, they prepare
  their part, and the run begins once all of them are ready. Every other site counts as lost from
  then on, so that each later join takes the same steps.
- **A member** makes calls. After its last one it has *departed*: it is still a member, since the
  others may need its lanes. It is *excluded*, and has *left*, once another member makes a call that
  it has not made. Where losses are not repaired, it leaves at once.
- **A lost site** may join again, as another process. It is a *newcomer* until the members admit
  it: its neighbours hear of it, it starts, and it asks for admission. A worker of a served model is
  admitted as it starts. A newcomer counts as lost, so its end interrupts no call.
- **A site that has left cannot be lost.** If its connection breaks it is *gone*: the others stop
  relaying through it, and the log still says that it left.

Events come from five modules: `_presence` (joins, the choice of the start), `server` (ready),
`_beginning` (begins), `_survivors` (departures and losses), `_admission` (newcomers).

What must never happen: a site counts as a member after the others excluded it, a newcomer holds up
a call, or a departed site is reported as dead.

The connection of a site is no stage. It may be broken or silent for a while (`_presence`), and
neighbours may report that their lanes to the site ended (`_cut_links`); a loss ends all three.
Whether a member follows the others' calls is state of the calls (`calls/_following`).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from anabranch.scheduler._stages import Stages


class Stage(Enum):
    """The stages of a site's life."""

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
    """The events of a site's life."""

    JOINS = "joins"
    IS_DROPPED = "is dropped before the sites of the start are chosen"
    IS_WELCOMED = "is welcomed, as one of the sites of the start"
    IS_PASSED_OVER = "is not one of the sites of the start"
    IS_READY = "is ready"
    BEGINS = "begins"
    DEPARTS = "has made its last call, and stays a member until another makes a further one"
    LEAVES = "has made its last call"
    LEAVES_WORKERS = "leaves a served model while other workers still train it"
    IS_EXCLUDED = "is no member any more, since another has made a further call"
    IS_LOST = "is lost"
    IS_INTRODUCED = "is introduced to its neighbours"
    STARTS = "starts, since its neighbours know of it"
    ASKS = "asks for admission"
    IS_ADMITTED = "is admitted"
    ENDS_EARLY = "ends before it was admitted"


S, H = Stage, Happens
TABLE: dict[Stage, dict[Happens, Stage]] = {
    S.ABSENT: {H.JOINS: S.JOINED, H.IS_PASSED_OVER: S.LOST},
    S.JOINED: {H.IS_DROPPED: S.ABSENT, H.IS_WELCOMED: S.PREPARING, H.IS_PASSED_OVER: S.CAME},
    S.PREPARING: {H.IS_READY: S.READY, H.IS_LOST: S.LOST},
    S.READY: {H.BEGINS: S.MEMBER, H.IS_LOST: S.LOST},
    S.MEMBER: {
        H.DEPARTS: S.DEPARTED,
        H.LEAVES: S.LEFT,
        H.LEAVES_WORKERS: S.GONE,
        H.IS_LOST: S.LOST,
    },
    S.DEPARTED: {H.IS_EXCLUDED: S.LEFT, H.IS_LOST: S.GONE},
    S.LEFT: {H.IS_LOST: S.GONE},
    S.GONE: {H.JOINS: S.CAME},
    S.LOST: {H.JOINS: S.CAME},
    S.CAME: {H.IS_INTRODUCED: S.INTRODUCED, H.ENDS_EARLY: S.LOST},
    S.INTRODUCED: {H.STARTS: S.STARTED, H.ENDS_EARLY: S.LOST},
    S.STARTED: {H.ASKS: S.ASKING, H.IS_ADMITTED: S.MEMBER, H.ENDS_EARLY: S.LOST},
    S.ASKING: {H.IS_ADMITTED: S.MEMBER, H.ENDS_EARLY: S.LOST},
}
"""For each stage, the events that are possible there and the stage that each leads to."""

NEWCOMERS = frozenset({S.CAME, S.INTRODUCED, S.STARTED, S.ASKING})
"""Stages of sites that joined after the start and are not members yet."""

HAS_LEFT = frozenset({S.DEPARTED, S.LEFT, S.GONE})
"""Stages of sites that make no further call."""

AWAY = frozenset({S.GONE, S.LOST}) | NEWCOMERS
"""Stages of sites through which no data travels. Those that have left may still relay."""


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
        """Restore the stages after a restart of the scheduler.

        Args:
            lost: sites that the run continues without. Newcomers of the time before are among
                them: they have to join again.
            left: sites that make no further call.
            departed: those of ``left`` that are still members.
        """
        for site in range(self._size):
            stage = S.LOST if site in lost else S.MEMBER
            if site in left:
                stage = S.GONE if site in lost else S.LEFT
            self.put(site, S.DEPARTED if site in departed else stage)

    def sites(self, *stages: Stage) -> frozenset[int]:
        """Return the sites at some stages."""
        # Sorted, because event logs must not depend on the order in which sites got to a stage.
        return frozenset(sorted(self.at(*stages)))

    @property
    def newcomers(self) -> frozenset[int]:
        """The sites that joined after the start and are not members yet."""
        return self.sites(*NEWCOMERS)

    @property
    def lost(self) -> frozenset[int]:
        """The sites that the run continues without, newcomers among them."""
        return self.sites(*AWAY)

    @property
    def left(self) -> frozenset[int]:
        """The sites that make no further call."""
        return self.sites(*HAS_LEFT)

    @property
    def departed(self) -> frozenset[int]:
        """The sites that make no further call and are still members."""
        return self.sites(Stage.DEPARTED)

    @property
    def has_formed(self) -> bool:
        """Whether the sites of the start are chosen."""
        return not self.any_at(Stage.ABSENT, Stage.JOINED)

    @property
    def are_ready(self) -> bool:
        """Whether the sites of the start are chosen and none still prepares its part."""
        return self.has_formed and not self.any_at(Stage.PREPARING)
