"""The contents of the journal: the facts that a restarted scheduler cannot learn from its sites.

Sites know the state of each call, and report it to a restarted scheduler. They do not know the
members, the losses, or the plan for the rest. These change seldom. The scheduler writes each change
down before any site hears of it.
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
"""Exchange numbers that may be used between two writes. A restart continues above all of them, so
that chunks of two exchanges never carry one number."""


class Interrupted(msgspec.Struct, frozen=True):
    """The contributions in an interrupted exchange."""

    channel: int
    number: int
    contributions: tuple[Contribution, ...]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's record.

    Attributes:
        overlay_toml: the sites and links.
        work_digest: of the settings that sites got on joining; see :func:`digest`.
        secret: of the run; the sites' secrets are derived from it.
        addresses, incarnations: of every site, by index; no host if it has not joined.
        lost, cut, relays: see :class:`anabranch.scheduler.losses.Losses`.
        left, departed: the sites that make no further call, and the members among these.
        plan_json: the plan in force.
        subgroups: the channels from 1 on.
        interrupted: the interrupted exchanges.
        latest_exchange: an upper bound of the exchange numbers used.
        elements: of the first buffer.
        began_at_s: when the run began, by the journal's clock.
        listen: the address at which the scheduler listens.
        rates: the belief of each measured link: its target, and the rest.
        stopped: why the run is to end before its last round, or None.
        lasts: by channel, the last exchange of a run that is stopped; empty if it is not.
        transfers: the numbers of the transfers of the state among the exchanges of all sites.
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
        """The sites and links that the run continues without."""
        return Losses(self.lost, self.cut, self.relays)

    def check_fits(self, overlay: Overlay, work: str) -> None:
        """Check that the journal is of a run with this overlay and these settings.

        The sites keep the settings from before the restart, so the scheduler must have the same.

        Args:
            overlay: the sites and links.
            work: the settings that a site would be told on joining.

        Raises:
            LogError: the journal is of another run.
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
    """Return a digest of the settings that sites are told on joining."""
    return hashlib.sha256(work.encode()).hexdigest()


encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Memory).decode


def read(data: bytes) -> Memory:
    """Return the record in a journal.

    Raises:
        LogError: another release wrote it.
    """
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise LogError(
            f"the journal is not one of this release ({error}); end its group with the release "
            "that began it, or give another journal for a new group"
        ) from None


class Journal(Protocol):
    """Keeps one record for a scheduler, across restarts."""

    def load(self) -> bytes | None:
        """Return the record; None if there is none."""

    def save(self, data: bytes) -> None:
        """Replace the record; on return it outlives the process and a loss of power.

        Raises:
            LogError: it cannot be written.
        """

    def now_s(self) -> float:
        """Return seconds by a clock that runs on while no scheduler does."""
