"""Writes a run's journal, before any site hears of a change.

The order matters. A site that has heard of a loss, a plan or an interruption acts on it. If the
scheduler ended before it wrote that down, its successor would contradict the site.
"""

from __future__ import annotations

from functools import partial

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.net.messages import LinkRate
from anabranch.net.network import Address
from anabranch.scheduler import memory as memories
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.memory import Journal, Memory
from anabranch.scheduler.run import Run


class JournalKeeper:
    """Writes a run's journal.

    Args:
        run: the run.
        work: the settings that sites get on joining.
        journal: keeps the record; None for a run that ends with its scheduler.
        secret: of the run.
        written: the record in the journal, encoded.
        memory: the same record; None if no earlier scheduler wrote one.
        awareness: its measurements are kept, too; None if nothing is measured.

    Attributes:
        listens_at: the address at which sites connect; set by the scheduler as it listens.
    """

    listens_at: Address

    def __init__(
        self,
        run: Run,
        work: str,
        journal: Journal | None,
        secret: bytes,
        written: bytes,
        memory: Memory | None,
        awareness: Awareness | None = None,
    ) -> None:
        self._run = run
        self._work_digest = memories.digest(work)
        self._awareness = awareness
        self._journal = journal
        self._secret = secret
        self._written = written
        self._reserved = 0 if memory is None else memory.latest_exchange  # exchange numbers
        self._began_at_s = 0.0 if memory is None else memory.began_at_s  # by the journal's clock

    def begin(self) -> None:
        """Note that the run begins now."""
        self._began_at_s = 0.0 if self._journal is None else self._journal.now_s()

    def since_began_s(self) -> float:
        """Return seconds since the run began, by the journal's clock, which survives restarts."""
        assert self._journal is not None
        return max(0.0, self._journal.now_s() - self._began_at_s)

    def remember_calls(self, is_needed: bool) -> None:
        """Write the journal if calls changed its record, or used up its exchange numbers.

        Args:
            is_needed: see :attr:`anabranch.scheduler.calls._outcome.Outcome.is_to_remember`.
        """
        is_used_up = self._run.channels.latest_exchange >= self._reserved
        if self._journal is not None and (is_needed or is_used_up):
            self.remember()

    def remember(self) -> None:
        """Write the journal if its record has changed; call this before any site hears of it."""
        run, channels = self._run, self._run.channels
        if self._journal is None or run.started_s is None or run.returning is not None:
            return
        if channels.latest_exchange + memories.RESERVED // 2 > self._reserved:
            self._reserved = channels.latest_exchange + memories.RESERVED
        memory = Memory(
            overlay_toml=overlays.dumps(run.overlay),
            work_digest=self._work_digest,
            secret=self._secret,
            addresses=run.members.addresses,
            incarnations=run.members.incarnations,
            lost=run.losses.lost,
            cut=run.losses.cut,
            relays=run.losses.relays,
            left=run.lives.left,
            departed=run.lives.departed,
            plan_json=plans.dumps(channels.all.plan),
            subgroups=channels.subgroups,
            interrupted=tuple(
                memories.Interrupted(channel, number, contributions)
                for (channel, number), contributions in channels.contributions.items()
            ),
            latest_exchange=self._reserved,
            elements=run.buffer_elements or 0,
            began_at_s=self._began_at_s,
            listen=self.listens_at,
            rates=self._rates(),
            stopped=run.stopped,
            lasts=channels.books.lasts,
            transfers=channels.following.transfers,
        )
        data = memories.encode(memory)
        if data != self._written:
            self._written = data
            run.write_down(partial(self._journal.save, data))

    def _rates(self) -> tuple[tuple[int, LinkRate], ...]:
        """Return the belief of each measured link."""
        if self._awareness is None or not self._awareness.measured_links:
            return ()
        measured = self._awareness.measured_links
        return tuple(
            (link.target, LinkRate(link.source, link.goodput_bps, link.latency_s, 1))
            for link in self._awareness.belief(self._run.since_start_s()).links
            if (link.source, link.target) in measured
        )
