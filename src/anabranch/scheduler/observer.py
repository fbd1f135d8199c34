"""What a run's scheduler tells whoever keeps its log."""

from __future__ import annotations

from typing import Protocol

from anabranch.net.errors import PeerError
from anabranch.net.messages import LinkRate, ProceedRequest, RoundEnded
from anabranch.net.network import Address
from anabranch.scheduler.pacing import Decision
from anabranch.scheduler.policy import Replan


class Observer(Protocol):
    """Hears what happens in a run; the log is one."""

    def joined(self, site: int, address: Address, now_s: float) -> None:
        """A site has joined; while the run goes on, one that was lost takes part again."""

    def started(self, buffer_elements: int) -> None:
        """Every site is ready to exchange buffers of this size; the run's clock starts."""

    def round_began(self, round: int, version: int, site: int) -> None:
        """A site was the first to ask for a round, which fixed its plan version."""

    def measured(self, source: int, target: int, rate: LinkRate) -> None:
        """The site at a link's end has measured it."""

    def plan_issued(self, replan: Replan) -> None:
        """Rounds that nobody has asked for yet run under another plan."""

    def round_ended(self, site: int, ended: RoundEnded) -> None:
        """A site holds a round's result."""

    def asked(self, worker: int, request: ProceedRequest, now_s: float) -> None:
        """A worker has pushed an update and asks to go on; times are since the run began."""

    def looked(self, now_s: float) -> None:
        """The pace decides what has become due."""

    def paced(self, decision: Decision, now_s: float) -> None:
        """The model took a step, or somebody may go on."""

    def cut(self, site: int, why: str) -> None:
        """A site's connection has broken; it may come back."""

    def resumed(self, site: int) -> None:
        """A site whose connection had broken is back."""

    def lost(self, site: int, why: str, goes_on: bool, now_s: float) -> None:
        """A site has died or did not come back, and the run goes on without it or not."""

    def reported(self, site: int, events: tuple[bytes, ...]) -> None:
        """A site sent events for the log; raise PeerError to refuse them."""

    def refused(self, site: int | None, error: PeerError) -> None:
        """A message was refused."""
