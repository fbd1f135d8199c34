"""The summary of a run's events. Pure; a log cut short is summarised as far as it goes.

All times are seconds since the run began unless a name says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, TypeVar

from anabranch.log.by_site import accuracy_of
from anabranch.log.events import (
    Evaluated,
    Event,
    FaultInjected,
    GroupsFormed,
    LabelsHeld,
    LinkBytes,
    LinkMeasured,
    LinksEmulated,
    MessageRefused,
    PlanIssued,
    ReachedBy,
    RoundDone,
    RunEnded,
    RunStarted,
    SiteJoined,
    SiteLost,
    StepDone,
    TransportChosen,
    UnknownEvent,
)
from anabranch.log.pacing import PaceSummary, summarise_pace
from anabranch.log.target import Target


@dataclass(frozen=True, slots=True)
class CompletedRound:
    """A round whose result every present site has."""

    round: int  # its number, from 1
    version: int  # of the plan it ran under
    at_s: float  # when the last site had the result
    seconds: float  # the longest any site took


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """The accuracy after one round."""

    at_s: float  # when every site had the model, or else when the last site evaluated it
    round: int  # its number
    accuracy: float  # mean over the sites that evaluated it, in [0, 1]
    # The accuracy on each class's samples; None for a class without samples. Empty where unknown.
    by_class: tuple[float | None, ...] = ()


MOST_BUSY = 0.8
"""With a busier relay, the figures depend on this machine, and not on the overlay."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """A round whose result was not the same at all sites."""

    round: int  # its number
    # The sites whose checksum is not the commonest one. Of equally common checksums, that of the
    # site with the lowest index counts as right.
    sites: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """The chain of sites that a round waited for.

    It begins at the site that finished last. Each next site is the one whose message completed the
    round at the site before. The chain ends at a site whose own sending was last or that reports no
    message, or before a site that is already in the chain.

    As a rule it follows the mean back to a root, and then the sum that came last at the root to the
    child that sent it. That child got the mean from the root, so the chain ends there. The chain
    does not show what delayed the child's sum: a slow link below it, or long computing. Each site
    reports its last message only, which may belong to another tree than the message it sent. So the
    chain says where to look, and is not a proof.
    """

    round: int  # its number
    sites: tuple[int, ...]  # the chain, the site that finished last first; at least one
    tree: int | None  # index into the plan's trees of the last message on the chain, or None

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """The awaited messages, as (source, target), the last to arrive first.

        Source and target are neighbours in a tree. Where relays join them, they have no link.
        """
        return tuple((source, target) for target, source in pairwise(self.sites))

    @property
    def began(self) -> tuple[int, int] | None:
        """The chain's last pair, where the waiting began; None in a chain of one site."""
        return self.links[-1] if len(self.sites) > 1 else None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of one run."""

    started: RunStarted  # the run's first event
    rounds: tuple[CompletedRound, ...]  # the completed rounds, in order of number
    # For each round with steps, in order, the longest time that any site computed for it.
    compute_s: tuple[float, ...]
    steps: tuple[StepDone, ...]  # the sites' local updates, in order of time
    # One point for each evaluated round, in order of number. In a run with servers, where each
    # worker counts its own updates, one point for each evaluation, in order of time.
    accuracy: tuple[AccuracyPoint, ...]
    evaluated: tuple[Evaluated, ...]  # each site's evaluations, in order of time
    # How many samples of each class each site trains on, by site; empty where that is unknown.
    labels: Mapping[int, tuple[int, ...]]
    # Each link's traffic, by (source, target), in order of time.
    links: Mapping[tuple[int, int], tuple[LinkBytes, ...]]
    # Each link's estimates, by (source, target), in order of time.
    measured: Mapping[tuple[int, int], tuple[LinkMeasured, ...]]
    plans: tuple[PlanIssued, ...]  # the plans after the first, in order
    formed: tuple[GroupsFormed, ...]  # the plans whose groups took effect, in order
    # Each completed round's chain of waiting, in order; empty where no site reported the neighbour
    # that it waited for.
    waits: tuple[Wait, ...]
    checked_rounds: int  # how many rounds have checksums of two sites or more
    disputes: tuple[Dispute, ...]  # the checked rounds whose checksums differ
    checksums: Mapping[int, int]  # of the other checked rounds, by number
    faults: tuple[FaultInjected, ...]  # the fault script's actions, in order
    # The losses of sites, in order; a site that returned may be lost again.
    lost: tuple[SiteLost, ...]
    returned: tuple[SiteJoined, ...]  # the returns of lost sites, in order
    pace: PaceSummary | None  # of a run with servers; None for a run that all-reduces
    # How busy the relay of emulated links was, in [0, 1]; None without a relay.
    relay_busy: float | None
    # Of the sites whose lanes do not send as configured.
    transports: tuple[TransportChosen, ...]
    refused: Mapping[str, int]  # the count of refused messages, by name of the error
    unknown: Mapping[str, int]  # the count of unknown events, by kind
    total_s: float  # when the run ended or, where it did not, when its last event was written
    ended: bool  # whether the log has its last event
    error: str | None  # the error that ended the run, or None
    reason: str | None  # why the run ended early on purpose, or None

    @property
    def label(self) -> str:
        """The run's name."""
        return self.started.label

    @property
    def simulated(self) -> bool:
        """Whether the run took place in virtual time."""
        return self.started.world == "simulated"

    @property
    def links_held(self) -> bool:
        """Whether links had the overlay's rates, so that predictions and limits apply."""
        return self.started.shaped and (self.relay_busy or 0.0) <= MOST_BUSY

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, by index."""
        return tuple(self.started.sites)

    @property
    def round_s(self) -> tuple[float, ...]:
        """How long each completed round took, seconds."""
        return tuple(done.seconds for done in self.rounds)

    @property
    def interval_s(self) -> tuple[float, ...]:
        """The time from the end of one completed round to the end of the next, seconds.

        ``round_s`` is the time of the exchange alone. This time also includes computing, waiting
        for others and evaluating. The first counts from the beginning of the run.
        """
        ends_s = (0.0, *(done.at_s for done in self.rounds))
        return tuple(after_s - before_s for before_s, after_s in pairwise(ends_s))

    @property
    def median_interval_s(self) -> float | None:
        """The median time from the end of one round to the next, s; None before the first."""
        return median(self.interval_s) if self.rounds else None

    @property
    def median_round_s(self) -> float | None:
        """The median round time, seconds; None before the first completed round."""
        return median(self.round_s) if self.rounds else None

    @property
    def measured_over_predicted(self) -> float | None:
        """Median round time over the predicted one.

        None before the first completed round, and where links were not held to the overlay's rates:
        then the prediction does not apply.
        """
        measured_s = self.median_round_s
        if measured_s is None or not self.links_held or self.started.predicted_s <= 0:
            return None
        return measured_s / self.started.predicted_s

    @property
    def share_of_limit(self) -> float | None:
        """The shortest possible round time over the median one.

        None where ``measured_over_predicted`` is, and where the limit was not computed.
        """
        measured_s, limit_s = self.median_round_s, self.started.limit_s
        if limit_s is None or measured_s is None or not self.links_held or measured_s <= 0:
            return None
        return limit_s / measured_s

    @property
    def plan_versions(self) -> tuple[int, ...]:
        """The versions of the plans that completed rounds ran under, in order."""
        return tuple(sorted({done.version for done in self.rounds}))

    @property
    def final_accuracy(self) -> float | None:
        """The accuracy of the last evaluated round, or None."""
        return self.accuracy[-1].accuracy if self.accuracy else None

    @property
    def best_accuracy(self) -> float | None:
        """The best accuracy of any round, or None."""
        return max((point.accuracy for point in self.accuracy), default=None)

    @property
    def site_accuracy(self) -> dict[int, float]:
        """The latest accuracy for each site, by site; a site without a known accuracy is left out.

        See `anabranch.log.by_site`.
        """
        by_class = self.accuracy[-1].by_class if self.accuracy else ()
        found = {site: accuracy_of(held, by_class) for site, held in self.labels.items()}
        return {site: accuracy for site, accuracy in found.items() if accuracy is not None}

    def time_to_accuracy_s(
        self, target: float, reached_by: ReachedBy | None = None
    ) -> float | None:
        """Return when the accuracy first was at least the target, or None where it never was.

        Args:
            target: in (0, 1].
            reached_by: the rule where sites' models differ, see `anabranch.log.target.Target`; None
                for the run's own.
        """
        window_s = self.started.window_s
        if not any(event.step is not None for event in self.evaluated):
            # The window holds evaluations by their own times, as it did when the run was stopped.
            rule = Target(target, "first", sites=1, window_s=window_s)
            reached = next((event for event in self.evaluated if rule.is_reached(event)), None)
            ends = {} if self.pace else {point.round: point.at_s for point in self.accuracy}
            return None if reached is None else ends.get(reached.round, reached.at_s)
        gone = {event.site for event in self.lost if event.goes_on}
        sites = len({event.site for event in self.evaluated} - gone)
        by = reached_by or self.started.reached_by
        rule = Target(target, by, sites, window_s=window_s)
        return next((event.at_s for event in self.evaluated if rule.is_reached(event)), None)

    def bytes_to_accuracy(self, target: float, reached_by: ReachedBy | None = None) -> int | None:
        """Return the payload of all links until the accuracy is reached, bytes.

        None where it never is. Of a site's report of an interval that ends later, the part until
        then counts. The arguments are those of `time_to_accuracy_s`.
        """
        reached_s = self.time_to_accuracy_s(target, reached_by)
        if reached_s is None:
            return None
        counted = 0.0
        for each in (each for samples in self.links.values() for each in samples):
            late_s = min(max(0.0, each.at_s - reached_s), each.seconds)
            counted += each.payload_bytes * (1.0 - late_s / each.seconds if each.seconds else 1.0)
        return round(counted)

    @property
    def checksums_agree(self) -> bool | None:
        """Whether all checked rounds had equal checksums; None where none was checked."""
        return not self.disputes if self.checked_rounds else None

    @property
    def link_bytes(self) -> dict[tuple[int, int], int]:
        """Each link's payload in the whole run, bytes, by (source, target)."""
        return {
            pair: sum(sample.payload_bytes for sample in samples)
            for pair, samples in self.links.items()
        }


def observed(runs: Iterable[RunSummary]) -> str:
    """Return the word for the source of these runs' figures: measured, simulated, or either."""
    words = sorted({"simulated" if run.simulated else "measured" for run in runs})
    return " or ".join(words) or "measured"


Kind = TypeVar("Kind", bound=Event | UnknownEvent)


def summarise(events: Iterable[Event | UnknownEvent]) -> RunSummary:
    """Summarise a run.

    Args:
        events: as read from its log, from the first event on; they may end anywhere.

    Raises:
        ValueError: there are no events, they do not begin with `RunStarted`, or they hold a second
            one.
    """
    events = iter(events)
    started = next(events, None)
    if started is None:
        raise ValueError("the log is empty: the run died before it began; run it again")
    if not isinstance(started, RunStarted):
        raise ValueError(
            f"the log begins with {started}, not with run_started; give all of its events"
        )
    events = list(events)
    by_kind: defaultdict[type, list[Any]] = defaultdict(list)
    for event in events:
        by_kind[type(event)].append(event)
    if by_kind[RunStarted]:
        raise ValueError("the log has a second run_started; give the events of one run")

    def of(kind: type[Kind]) -> list[Kind]:
        return by_kind[kind]

    end = of(RunEnded)[-1] if of(RunEnded) else None
    # A site's clock may be wrong; the scheduler's clock, which dates the end, is right.
    total_s = end.at_s if end else max((event.at_s for event in events), default=0.0)
    done, completed, returned = _rounds(events, len(started.sites))
    checksums = _checksums(done)
    disputes = {number: _dissenters(sums) for number, sums in checksums.items()}
    pace = summarise_pace(events)
    compute_s: defaultdict[int, dict[int, float]] = defaultdict(dict)  # by round, site
    for step in of(StepDone):
        by_site = compute_s[step.round]
        by_site[step.site] = by_site.get(step.site, 0.0) + step.compute_s
    return RunSummary(
        started=started,
        rounds=tuple(
            CompletedRound(
                number,
                last.version,
                last.at_s,
                max(each.seconds for each in done[number].values()),
            )
            for number in completed
            for last in (_last(done[number]),)
        ),
        compute_s=tuple(max(by_site.values()) for _, by_site in sorted(compute_s.items())),
        steps=tuple(sorted(of(StepDone), key=_at_s)),
        accuracy=(
            _accuracy(of(Evaluated), {number: done[number] for number in completed})
            if pace is None
            else _looks(of(Evaluated))
        ),
        evaluated=tuple(sorted(of(Evaluated), key=_at_s)),
        labels={
            event.site: tuple(event.samples)
            for event in sorted(of(LabelsHeld), key=lambda event: event.site)
        },
        links=_by_link(of(LinkBytes)),
        measured=_by_link(of(LinkMeasured)),
        plans=tuple(of(PlanIssued)),
        formed=tuple(of(GroupsFormed)),
        waits=(
            tuple(_wait(number, done[number]) for number in completed)
            if any(each.waited_for is not None for each in of(RoundDone))
            else ()
        ),
        checked_rounds=len(checksums),
        disputes=tuple(Dispute(number, sites) for number, sites in disputes.items() if sites),
        checksums={
            number: next(iter(sums.values()))
            for number, sums in checksums.items()
            if not disputes[number]
        },
        faults=tuple(of(FaultInjected)),
        lost=tuple(of(SiteLost)),
        returned=returned,
        pace=pace,
        relay_busy=max((event.relay_busy for event in of(LinksEmulated)), default=None),
        transports=tuple(of(TransportChosen)),
        refused=_tally(event.error for event in of(MessageRefused)),
        unknown=_tally(event.kind for event in of(UnknownEvent)),
        total_s=total_s,
        ended=end is not None,
        error=end.error if end else None,
        reason=end.reason if end else None,
    )


Done = Mapping[int, Mapping[int, RoundDone]]  # by round, site


def _rounds(
    events: Sequence[Event | UnknownEvent], sites: int
) -> tuple[Done, list[int], tuple[SiteJoined, ...]]:
    """Return each site's result of each round, the completed rounds, and the sites that returned.

    A round is completed when every site then present has its result.
    """
    done: defaultdict[int, dict[int, RoundDone]] = defaultdict(dict)
    completed: set[int] = set()
    present, lost, returned = set(range(sites)), set[int](), list[SiteJoined]()
    for event in events:
        concerned: Iterable[int] = ()
        match event:
            case RoundDone():
                done[event.round][event.site] = event
                concerned = (event.round,)
            case SiteJoined():
                present.add(event.site)
                if event.site in lost:
                    returned.append(event)
            case SiteLost():
                lost.add(event.site)
                present.discard(event.site)
                concerned = done  # rounds may have lacked only this site
        if present:
            completed.update(number for number in concerned if present <= done[number].keys())
    return done, sorted(completed), tuple(returned)


def _at_s(event: Event) -> float:
    return event.at_s


def _last(done: Mapping[int, RoundDone]) -> RoundDone:
    return max(done.values(), key=_at_s)


def _tally(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


OfLink = TypeVar("OfLink", LinkBytes, LinkMeasured)


def _by_link(events: Sequence[OfLink]) -> dict[tuple[int, int], tuple[OfLink, ...]]:
    found: defaultdict[tuple[int, int], list[OfLink]] = defaultdict(list)
    for event in sorted(events, key=_at_s):
        found[event.source, event.target].append(event)
    return {pair: tuple(series) for pair, series in sorted(found.items())}


def _accuracy(evaluated: Sequence[Evaluated], completed: Done) -> tuple[AccuracyPoint, ...]:
    # Where models differ between rounds, points are for equal steps.
    by_number: defaultdict[int, list[Evaluated]] = defaultdict(list)
    for event in evaluated:
        by_number[event.round if event.step is None else event.step].append(event)
    points = []
    for number, group in sorted(by_number.items()):
        # The scheduler's clock dates a completed round; a site's clock may be wrong.
        is_round = number in completed and group[0].step is None
        told = completed[number].values() if is_round else group
        accuracy = fmean(event.accuracy for event in group)
        by_class = _class_means([event.by_class for event in group if event.by_class is not None])
        points.append(AccuracyPoint(max(map(_at_s, told)), number, accuracy, by_class))
    return tuple(points)


def _looks(evaluated: Sequence[Evaluated]) -> tuple[AccuracyPoint, ...]:
    return tuple(
        AccuracyPoint(event.at_s, event.round, event.accuracy, tuple(event.by_class or ()))
        for event in sorted(evaluated, key=_at_s)
    )


def _class_means(told: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    """Return the mean accuracy of each class over the sites that evaluated it."""
    known = [
        [each for each in of_class if each is not None] for of_class in zip(*told, strict=False)
    ]
    return tuple(fmean(accuracies) if accuracies else None for accuracies in known)


def _checksums(done: Done) -> dict[int, dict[int, int]]:
    """Return each round's checksums by site, for rounds with checksums of two sites or more."""
    found = {
        number: {
            site: each.checksum
            for site, each in sorted(by_site.items())
            if each.checksum is not None
        }
        for number, by_site in sorted(done.items())
    }
    return {number: sums for number, sums in found.items() if len(sums) > 1}


def _dissenters(checksums: Mapping[int, int]) -> tuple[int, ...]:
    """Return the sites whose checksum is not the commonest; in a tie, the lowest site's is."""
    # Counter keeps the order of first sight, and max returns the first of equals.
    votes = Counter(checksums.values())
    right = max(votes, key=lambda checksum: votes[checksum])
    return tuple(site for site, checksum in checksums.items() if checksum != right)


def _wait(number: int, done: Mapping[int, RoundDone]) -> Wait:
    """Follow ``waited_for`` back from the site that finished last."""
    last = at = _last(done)
    sites, tree = [last.site], None
    while at.waited_for is not None and at.waited_for not in sites:
        sites.append(at.waited_for)
        tree = at.tree
        before = done.get(at.waited_for)
        # A site with the result of an earlier attempt only reports nothing of this attempt.
        if before is None or before.version != last.version:
            break
        at = before
    return Wait(number, tuple(sites), tree)
