"""The pace settings of a served model, as a log keeps them. Pure."""

from __future__ import annotations

import msgspec

from anabranch.cohort import Clients, Registry
from anabranch.merge import AnyMerge, Mean
from anabranch.pace import AnyLoad, AnyPace
from anabranch.plan import Plan
from anabranch.scheduler.pacing import PaceBook


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """How workers are paced, beside the plan.

    Args:
        pace, load, merge, clients: see :class:`anabranch.scheduler.pacing.PaceBook`.
        batch_size: of the slowest worker.
        workers: which sites compute.
        updates: how many each worker makes; logs of older releases have it as their rounds.
        ahead: whether a worker computes its next update while its last one is on its way.
        seed: of the registry of clients.
        look_every_s: see there.
    """

    pace: AnyPace
    load: AnyLoad
    batch_size: int
    workers: list[int]
    updates: int | None = None
    ahead: bool = False
    merge: AnyMerge = Mean()
    clients: Clients | None = None
    seed: int = 0
    look_every_s: float | None = None

    def encode(self) -> str:
        """Return it as text, which ``decode`` reads."""
        return msgspec.json.encode(self).decode()

    def book(self, plan: Plan, rounds: int = 0) -> PaceBook:
        """Return the books of a run, nothing in them.

        Args:
            plan: its roots are the servers; its groups are those of the workers, if it has any.
            rounds: how many updates each worker makes, where this does not say so.
        """
        return PaceBook(
            self.pace,
            self.load.load(self.batch_size),
            self.workers,
            [tree.root for tree in plan.trees],
            rounds if self.updates is None else self.updates,
            int(self.ahead),
            [group.workers for group in plan.groups],
            self.merge,
            None if self.clients is None else Registry(self.clients, self.seed),
            self.look_every_s,
        )


def decode(text: str) -> Paced:
    """Return what a log keeps.

    Raises:
        ValueError: the text is no such thing.
    """
    return msgspec.json.decode(text, type=Paced)
