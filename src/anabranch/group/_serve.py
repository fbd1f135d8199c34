"""The scheduler of a group: an overlay, a planner, a pace and awareness, as values; no scenario."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from anabranch import plan as plans
from anabranch.group._group import is_loopback
from anabranch.group._settings import Settings, dumps
from anabranch.net.network import Address, Network
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace, EqualBatches
from anabranch.plan import AnyPlanner, Auxiliary, Packed, Plan
from anabranch.scheduler.awareness import Awareness, Passive
from anabranch.scheduler.chunking import LEAST_ELEMENTS, MOST_ELEMENTS, chunk_elements
from anabranch.scheduler.dispatch import needed_window
from anabranch.scheduler.pacing import PaceBook
from anabranch.scheduler.server import Log, Scheduler

_ELEMENT_BYTES = 4
_REPORTS_AN_UPDATE = 4  # how often sites report measurements while plans are looked at once


@dataclass(frozen=True)
class Service:
    """What a scheduler serves a group with.

    Args:
        overlay: the sites and links.
        planner: where aggregates travel.
        awareness: how the scheduler learns of the network; None keeps the first plan.
        auxiliary: paths that help the trees' links; None for none.
        adaptive: whether chunks are dispatched while an exchange goes on. (A call then waits for a
            word from the scheduler before its first chunk leaves, as it does for its plan.)
        pace: who may proceed when, where the model is served; None for a group that all-reduces.
        load: how much work each worker has, where the model is served.
        updates: how many each worker makes, where the model is served.
        batch_size: that loads reckon from.
        under_way_bytes: of buffers whose exchanges may be under way at once.
        least_chunk_elements: chunks are no smaller than this.
    """

    overlay: Overlay
    planner: AnyPlanner = field(default_factory=Packed)
    awareness: Passive | None = field(default_factory=Passive)
    auxiliary: Auxiliary | None = None
    adaptive: bool = True
    pace: AnyPace | None = None
    load: AnyLoad = field(default_factory=EqualBatches)
    updates: int = 1
    batch_size: int = 1
    under_way_bytes: int = 1 << 30
    least_chunk_elements: int = LEAST_ELEMENTS

    def believed(self) -> Overlay:
        """Return what is believed of the network before anything is measured."""
        return self.overlay if self.awareness is None else self.awareness.believed(self.overlay)

    def plan(self, believed: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
        """Return a plan with its auxiliary paths."""
        plan = self.planner.plan(believed, version=version, previous=previous)
        return plans.with_auxiliary(plan, self._search(believed, plan))

    def _search(
        self, overlay: Overlay, plan: Plan
    ) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
        return {} if self.auxiliary is None else dict(self.auxiliary.paths(overlay, plan))

    def scheduler(self, network: Network, token: str, log: Log, listen: Address) -> Scheduler:
        """Return a scheduler that serves a group, in the running loop.

        Args:
            network: where sites connect.
            token: what a site must know to join.
            log: where to write down what happens.
            listen: where it will listen; on this machine alone, sites share its cores.
        """
        believed = self.believed()
        first = self.plan(believed)
        awareness: Awareness | None = None
        cores = os.cpu_count() or 1
        crowd = self.overlay.size / cores if is_loopback(listen[0]) else 1.0

        def now_believed() -> Overlay:
            return believed if awareness is None else awareness.made_for

        def chunking(plan: Plan, elements: int) -> int:
            found = chunk_elements(elements, plan, now_believed(), self.planner.deep, crowd)
            return max(found, self.least_chunk_elements)

        def dispatching(plan: Plan, elements: int) -> tuple[int, int]:
            each = chunking(plan, elements)
            chunks = len(plans.cut(elements, each))
            return chunks, needed_window(plan, now_believed(), _ELEMENT_BYTES * each, chunks, 0.0)

        if self.awareness is not None:
            awareness = self.awareness.awareness(
                first,
                self.plan,
                self._search,
                lambda elements: chunking(first, elements),
                self.overlay,
            )
        return Scheduler(
            network,
            self.overlay,
            first,
            token,
            dumps(self._settings()),
            chunking,
            log,
            awareness,
            dispatching if self.adaptive and self.planner.deep else None,
            self._pacing(first),
            self.under_way_bytes,
        )

    def _settings(self) -> Settings:
        workers = tuple(range(self.overlay.size))
        barrier = self.pace is not None and self.pace.barrier
        report_s = None
        if self.awareness is not None:
            report_s = self.awareness.update_time_s / _REPORTS_AN_UPDATE
        return Settings(
            least_chunk_elements=self.least_chunk_elements,
            most_chunk_elements=max(MOST_ELEMENTS, self.least_chunk_elements),
            under_way_bytes=self.under_way_bytes,
            report_s=report_s,
            workers=0 if self.pace is None else len(workers),
            added_up=workers if barrier else (),
        )

    def _pacing(self, plan: Plan) -> PaceBook | None:
        if self.pace is None:
            return None
        servers = [tree.root for tree in plan.trees]
        load = self.load.load(self.batch_size)
        workers = range(self.overlay.size)
        return PaceBook(self.pace, load, workers, servers, self.updates)
