"""What a scheduler must remember to find its group again after a restart, and what it asks sites.

How far each call is, the sites know themselves, and say it to a scheduler that was restarted. What
they do not know changes seldom: who takes part, what is lost, the plan. That is written down, each
time before any site hears of it.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from anabranch import overlay as overlays
from anabranch.log import LogError
from anabranch.net.messages import Contribution, LinkRate
from anabranch.overlay import Overlay
from anabranch.scheduler.calls._subgroups import Subgroup
from anabranch.scheduler.losses import Losses

RESERVED = 1_000_000
"""Exchange numbers that may be given out between two writes."""


class Interrupted(msgspec.Struct, frozen=True):
    """Whose contributions are in an exchange that was interrupted."""

    channel: int
    number: int
    contributions: tuple[Contribution, ...]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down.

    Attributes:
        overlay_toml: the sites and links.
        work_digest: of what sites were told on joining; see :func:`digest`.
        secret: of the run, from which those of sites are derived.
        addresses, incarnations: of every site, by index; no host where it has not joined.
        lost, cut, relays: see :class:`anabranch.scheduler.losses.Losses`.
        left, departed: sites that make no further call, and those of them that are members yet.
        plan_json: the plan in force.
        subgroups: the channels from 1 on.
        interrupted: exchanges that were.
        latest_exchange: no exchange has a higher number.
        elements: of the first buffer.
        began_at_s: when the run began, by the journal's clock.
        listen: where the scheduler does.
        rates: what is believed of the links that were measured: each link's target, and the rest.
        stopped: why the run is to end before its last round, or None.
        lasts: by channel, the last exchange that is held; empty where the run is not stopped.
        transfers: exchanges of all sites that have handed the state on, and are no rounds.
    """

    overlay_toml: str
    work_digest: str
    secret: bytes
    addresses: tuple[tuple[str, int], ...]
    incarnations: tuple[int, ...]
    lost: frozenset[int]
    cut: frozenset[tuple[int, int]]
    relays: frozenset[int]
    left: frozenset[int]
    departed: frozenset[int]
    plan_json: str
    subgroups: tuple[Subgroup, ...]
    interrupted: tuple[Interrupted, ...]
    latest_exchange: int
    elements: int
    began_at_s: float
    listen: tuple[str, int]
    rates: tuple[tuple[int, LinkRate], ...] = ()
    stopped: str | None = None
    lasts: tuple[int, ...] = ()
    transfers: tuple[int, ...] = ()

    @property
    def losses(self) -> Losses:
        """What the group goes on without."""
        return Losses(self.lost, self.cut, self.relays)

    def check_fits(self, overlay: Overlay, work: str) -> None:
        """Check that this is of a run with this overlay and these settings.

        The sites go on by what they were told when they joined.

        Args:
            overlay: the sites and links.
            work: what a site would be told on joining.

        Raises:
            LogError: it is of another.
        """
        if self.overlay_toml != overlays.dumps(overlay):
            raise LogError(
                "the journal is of a group with another overlay; give that one's, or another "
                "journal for a new group"
            )
        if self.work_digest != digest(work):
            raise LogError(
                "the journal is of a run whose sites were told other settings: another scenario, "
                "or other settings of a group; give those, or another journal for a new run"
            )


def digest(work: str) -> str:
    """Return what tells one work of sites from another."""
    return hashlib.sha256(work.encode()).hexdigest()


encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Memory).decode


def read(data: bytes) -> Memory:
    """Return what was written down.

    Raises:
        LogError: it is of another release.
    """
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise LogError(
            f"the journal is not one of this release ({error}); end its group with the release "
            "that began it, or give another journal for a new group"
        ) from None


class Journal(Protocol):
    """Where a scheduler writes down what it must remember."""

    def load(self) -> bytes | None:
        """Return what was written last; None where there is nothing."""

    def save(self, data: bytes) -> None:
        """Write this in place of what was; it outlives the process, and the machine's power.

        Raises:
            LogError: it cannot be written.
        """

    def now_s(self) -> float:
        """Return seconds by a clock that goes on while no scheduler runs."""
