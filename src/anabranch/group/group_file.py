"""A group's settings as a TOML file, with the tables and keys of a scenario's file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from anabranch import overlay as overlays
from anabranch._text import read_text
from anabranch._typed_toml import (
    Part,
    Positive,
    Seconds,
    SecondsFromZero,
    Table,
    TomlError,
    decode_toml,
)
from anabranch.group.checks import check_gossips, check_unserved
from anabranch.group.service import Service, Serving
from anabranch.log.events import ReachedBy
from anabranch.merge import AnyMerge, Mean
from anabranch.net.silence import STILLNESS_S
from anabranch.overlay import BUILT_IN, Link, Overlay, Site
from anabranch.pace import AnyLoad, AnyPace, EqualBatches
from anabranch.period import Gossip
from anabranch.plan import LEAST_CHUNK_ELEMENTS, AnyPlanner, Auxiliary, FromFile, Packed
from anabranch.scheduler.awareness import AnyAwareness, Passive
from anabranch.scheduler.deal import AnyDeal
from anabranch.scheduler.paced import Serve
from anabranch.scheduler.stop_rules import StopRules

UNKNOWN_BPS = 100e6
"""The assumed rate of a link until it is measured."""


class Stop(Table, frozen=True, kw_only=True):
    """When a group ends, at whichever comes first.

    Args:
        after_s, rounds, accuracy, loss, reached_by, window_s: see
            :class:`anabranch.scheduler.stop_rules.StopRules`.
    """

    after_s: Seconds | None = None
    rounds: Positive | None = None
    accuracy: Part | None = None
    loss: float | None = None
    reached_by: ReachedBy = "first"
    window_s: SecondsFromZero = 0.0

    def __post_init__(self) -> None:
        if self.rules() == StopRules():
            raise ValueError("stop: it says nothing; give after_s, rounds, accuracy or loss")

    def rules(self) -> StopRules:
        """Return the stop rules for a group's service."""
        return StopRules(
            self.after_s, self.rounds, self.accuracy, self.loss, self.reached_by, self.window_s
        )


class GroupFile(Table, frozen=True, kw_only=True):
    """A group's settings; :class:`anabranch.group.service.Service` explains each key.

    Args:
        overlay: a built-in overlay, or a file, relative to this file's folder.
        sites: names of sites, in place of an overlay: each pair has links, which are measured.
        route: the service's ``planner``.
        keep_plan: whether the overlay's rates are exact. If so, no link is measured, and the first
            plan stays.
        serve: which sites compute, and on which model; the service's ``serving.serve``.
        stop: when the group ends.
    """

    overlay: str | None = None
    sites: tuple[str, ...] = ()
    route: AnyPlanner = Packed()
    keep_plan: bool = False
    awareness: AnyAwareness | None = None
    auxiliary: Auxiliary | None = None
    deal: AnyDeal | None = None
    pace: AnyPace | None = None
    load: AnyLoad = EqualBatches()
    merge: AnyMerge = Mean()
    gossip: Gossip | None = None
    serve: Serve = Serve()
    updates: Positive = 1
    batch_size: Annotated[int, Meta(ge=0)] = 0
    model_elements: Positive | None = None
    stop: Stop | None = None
    under_way_bytes: Positive | None = 1 << 30
    chunk_elements: Positive | None = None
    least_chunk_elements: Positive = LEAST_CHUNK_ELEMENTS
    on_loss: Literal["complete", "retry", "abort"] = "complete"
    on_error: Literal["lose", "abort"] = "lose"
    least_sites: Positive = 2
    begin_with: Positive | None = None
    silence_s: Seconds | None = None
    stillness_s: Seconds = STILLNESS_S
    away_s: Seconds = 60.0

    def __post_init__(self) -> None:
        if (self.overlay is None) == (not self.sites):
            raise ValueError("overlay: give either that or sites")
        if self.keep_plan and self.sites:
            raise ValueError("keep_plan: the links between sites have no rates; give an overlay")
        if self.keep_plan and self.awareness is not None:
            raise ValueError("keep_plan: [awareness] measures links; leave one of them out")
        if self.pace is None:
            check_unserved(self.load, self.serve, self.updates, self.batch_size)
            if self.gossip is None and self.merge != Mean():
                raise ValueError(
                    "merge is of a served model, or of sites that gossip; give a pace or gossip, "
                    "or leave it out"
                )
        if self.gossip is not None:
            check_gossips(self.pace, self.merge, self.begin_with)

    def service(self, folder: Path) -> Service:
        """Return the service of these settings.

        Args:
            folder: the folder to which paths are relative.

        Raises:
            OverlayError: the overlay is invalid.
        """
        route, awareness = self.route, self.awareness
        if awareness is None and self.pace is None and not self.keep_plan:
            awareness = Passive(start="burst" if self.sites else "overlay")
        if isinstance(route, FromFile):
            route = replace(route, path=str(Path(folder, route.path).resolve()))
        return Service(
            self._network(folder),
            route,
            awareness,
            self.auxiliary,
            self.deal,
            self.pace,
            self.load,
            self.merge,
            self.gossip,
            Serving(self.serve),
            self.updates,
            self.batch_size,
            self.model_elements,
            StopRules() if self.stop is None else self.stop.rules(),
            self.under_way_bytes,
            self.chunk_elements,
            self.least_chunk_elements,
            self.on_loss,
            self.on_error,
            self.least_sites,
            self.begin_with,
            self.silence_s,
            self.stillness_s,
            self.away_s,
        )

    def _network(self, folder: Path) -> Overlay:
        if self.overlay is None:
            return complete(self.sites, None)
        source = Path(folder, self.overlay)
        is_named = self.overlay in BUILT_IN and not source.is_file()
        return overlays.load(self.overlay if is_named else source)


def complete(names: Sequence[str], rate_bps: float | None) -> Overlay:
    """Return an overlay with links between all pairs of sites.

    Args:
        names: the sites' names.
        rate_bps: the rate of each link; None assumes ``UNKNOWN_BPS`` until it is measured.
    """
    sites = tuple(Site(name.strip()) for name in names)
    basis: overlays.Basis = "assumed" if rate_bps is None else "given"
    links = tuple(
        Link(source, target, rate_bps or UNKNOWN_BPS, basis=basis)
        for source, target in permutations(range(len(sites)), 2)
    )
    return Overlay("group", sites, links)


def load(path: Path) -> Service:
    """Return the service that a file describes.

    Raises:
        TomlError: the file is invalid; names the file and the key, and says what to do.
        OverlayError: the overlay is invalid.
    """
    text = read_text(path, TomlError)
    try:
        file = decode_toml(text, GroupFile)
    except TomlError as error:
        raise TomlError(f"{path}: {error}") from error.__cause__
    return file.service(path.parent)
