"""The planner protocol: parameters, as in a scenario file, with a method that makes a plan."""

from __future__ import annotations

from typing import Protocol

from anabranch.overlay import Overlay
from anabranch.plan._model import Plan

CHUNK_ELEMENTS = 1 << 16


class Planner(Protocol):
    """A frozen value that makes a plan, the way of aggregates, for any overlay."""

    @property
    def deep(self) -> bool:
        """Whether its trees are many and deep.

        Then chunks should be small, and dealt to the trees during a round.
        """

    @property
    def by_size(self) -> bool:
        """Whether its plans depend on the size of the buffer."""

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> Plan:
        """Plan for an overlay.

        Args:
            overlay: the network as known now; traced links count at their rate of time 0.
            version: the plan's.
            previous: the plan in force, made by the same planner. Roots that the planner chose
                stay: a new root would need its part of the model moved to it (NetStorm, IV-B).
            elements: of the buffer; None where the count is unknown.
            chunk_elements: the most elements of a chunk.

        Raises:
            OverlayError: the planner names a site that the overlay lacks.
            PlanError: no plan has these parameters on this overlay.
        """


def named_or_kept(overlay: Overlay, name: str | None, previous: Plan | None) -> int | None:
    """Return the site of this name, or the root of the plan in force; None without either."""
    if name is not None:
        return overlay.index(name)
    return None if previous is None else previous.trees[0].root
