"""Acts on the outcomes of calls: journal first, then messages, then the log."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.log import events
from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import ExchangeEnded, Holding
from anabranch.scheduler._journal_keeper import JournalKeeper
from anabranch.scheduler._patience import RoundTimes
from anabranch.scheduler._planning import Planning
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.run import LONGEST_S, Run

_SLACK_S = 1.0  # by which an exchange may seem to have begun before the run


class Outcomes:
    """Acts on the outcomes of calls.

    Args:
        run: the run.
        planning: hears of exchanges that begin, and finds plans for further sizes.
        keeper: writes the journal.
        times: takes the durations of rounds.
        admit: admits newcomers after the members' gathering; returns the outcome.
        is_restart: whether an earlier scheduler began the run.
    """

    def __init__(
        self,
        run: Run,
        planning: Planning,
        keeper: JournalKeeper,
        times: RoundTimes,
        admit: Callable[[int, frozenset[int]], Outcome],
        is_restart: bool,
    ) -> None:
        self._run = run
        self._planning = planning
        self._keeper = keeper
        self._times = times
        self._admit = admit
        self._is_restart = is_restart

    def ended(self, site: int, message: ExchangeEnded) -> None:
        """Act on a site's message that it holds the result of an exchange."""
        self._check_times(message)
        run = self._run
        outcome = run.channels.ended(site, message)
        self._times.add((message.channel, message.number), message.seconds)
        run.tell_patience()
        round = run.channels.following.round_of(message.number)
        if message.channel == 0 and round is not None:
            run.note(
                events.RoundDone(
                    at_s=run.since_start_s(),
                    site=site,
                    round=round,
                    version=message.version,
                    seconds=message.seconds,
                    checksum=message.checksum,
                    waited_for=message.waited_for,
                    tree=message.tree,
                )
            )
        self.follow(outcome)

    def _check_times(self, message: ExchangeEnded) -> None:
        # After a restart, the time since the beginning comes from a clock that may have jumped.
        since_s = self._run.since_start_s()
        longest_s = LONGEST_S if self._is_restart else since_s + _SLACK_S
        if not 0 <= message.seconds <= longest_s:
            raise MalformedMessage(
                f"an exchange that took {message.seconds:g} s, in a run of {since_s:.3g} s"
            )
        if not 0 <= message.round_trip_s <= longest_s:
            raise MalformedMessage(f"a round trip of {message.round_trip_s:g} s")

    def held(self, site: int, message: Holding) -> None:
        """Act on a site's report of the elements that it holds."""
        if message.ended is not None:
            self._check_times(message.ended)
        self.follow(self._run.channels.hold(site, message))

    def follow(self, outcome: Outcome) -> None:
        """Act on an outcome: write the journal, send its messages, log its events."""
        run = self._run
        self._keeper.remember_calls(outcome.is_to_remember)
        for site, message in outcome.say:
            run.post(site, message)
        for began in outcome.began:
            if not run.buffer_elements:
                run.buffer_elements = began.elements
                run.note_began(began.elements)
            round = run.channels.following.round_of(began.number)
            if began.channel == 0 and round is not None:
                run.note(
                    events.RoundBegan(
                        at_s=run.since_start_s(),
                        round=round,
                        version=began.version,
                        site=began.site,
                    )
                )
            self._planning.exchange_began()
        for repaired in outcome.repaired:
            run.note(
                events.ExchangeRepaired(
                    at_s=run.since_start_s(),
                    channel=repaired.channel,
                    number=repaired.number,
                    members=list(repaired.members),
                    reduced_elements=repaired.reduced,
                    spread_elements=repaired.spread,
                    interrupted=repaired.interrupted,
                )
            )
        for site, ended in outcome.ended:
            self.ended(site, ended)
        for elements in run.channels.books.unplanned:
            self._planning.seek(elements, self.follow)
        if outcome.wrong:
            run.abort(outcome.wrong)
        elif outcome.admission is not None:
            self.follow(self._admit(*outcome.admission))
