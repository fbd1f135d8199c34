"""What a run came to: events in, figures out. Pure; a log cut short is summed up as far as it goes.

All times are seconds since the run began unless a name says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from anabranch.overlay import Link, Overlay
from anabranch.record.events import (
    Evaluated,
    Event,
    FaultInjected,
    LinkBytes,
    LinkMeasured,
    MessageRefused,
    PlanIssued,
    ProceedAsked,
    RoundBegan,
    RoundDone,
    RunEnded,
    RunStarted,
    SiteJoined,
    SiteLost,
    StepDone,
    TransportChosen,
    UnknownEvent,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    WorkerWent,
)
from anabranch.record.pacing import Paced, PaceSummary, summarise_pace


@dataclass(frozen=True, slots=True)
class CompletedRound:
    """A round that every site taking part has the result of.

    Args:
        round: its number, from 1.
        version: of the plan it ran under.
        at_s: when the last site had the result.
        seconds: the longest any site took.
    """

    round: int
    version: int
    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """The accuracy after one round.

    Args:
        at_s: when every site had the model, or else when the last site that evaluated it did.
        round: which.
        accuracy: mean over those sites, in [0, 1].
    """

    at_s: float
    round: int
    accuracy: float


@dataclass(frozen=True, slots=True)
class Dispute:
    """A round whose result was not the same everywhere.

    Args:
        round: which.
        sites: those whose checksum is not the commonest one; of equally common ones, that of the
            site with the lowest index counts as right.
    """

    round: int
    sites: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Who held a round up: whom the last site waited for, whom that one did, and so on.

    The chain begins at the site that finished last. Each next site is the one whose message
    completed the round at the site before. It ends at a site whose own sending was last or that
    does not say, or before a site that is already on it.

    As a rule it follows the mean back to a root, and the root to the child whose sum came last; as
    that child in turn got the mean from the root, the chain ends there, circular. What kept the
    child's sum, a slow link below it or long computing, the chain does not say. Each site tells of
    its last message only, which may belong to another tree than the one it sent on. So the chain is
    where to look, not a proof.

    Args:
        round: which.
        sites: the chain, the site that finished last first; at least one.
        tree: index into the plan's trees of the last message on the chain, or None.
        circular: whether the chain ended because it came back to itself.
    """

    round: int
    sites: tuple[int, ...]
    tree: int | None
    circular: bool

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """The messages waited for, as (source, target), the last to arrive first.

        Source and target are neighbours in a tree; where relays join them they have no link of
        their own.
        """
        return tuple((source, target) for target, source in pairwise(self.sites))

    @property
    def began(self) -> tuple[int, int] | None:
        """The link at the chain's end, where the waiting began; None where there is none."""
        return self.links[-1] if len(self.sites) > 1 else None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How busy a link was during ``(at_s - seconds, at_s]``.

    Args:
        at_s, seconds: the interval's end and length.
        share: payload sent, as a share of what the link's goodput could have carried. Above 1
            where the link is faster than the overlay says, or its queue took the rest in.
    """

    at_s: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run, summed up.

    Args:
        started: the run's first event.
        rounds: those completed, in order of number.
        compute_s: for each round with steps, in order, the longest any site computed for it.
        steps: the sites' local updates, in order of time.
        accuracy: one point for each evaluated round, in order of number.
        links: what each link carried, by (source, target), in order of time.
        measured: each link's estimates, by (source, target), in order of time.
        plans: those issued after the first, in order.
        versions: of the plan that each round begun ran under, by number: as the scheduler fixed it
            or, in logs that do not say, as the sites told. Of a repeated round, the last.
        waits: who held up each completed round, in order; empty where no site said whom it waited
            for.
        checked_rounds: how many rounds have checksums of two sites or more.
        disputes: the checked rounds whose checksums differ.
        checksums: of the other checked rounds, by number.
        faults: what a fault script did, in order.
        lost: the sites that were lost, in order; one that came back may be lost again.
        returned: those that came back, in order.
        pace: what a run with servers came to; None for one that all-reduces.
        transports: of the sites whose lanes do not send as they were asked to.
        refused: messages refused, by name of the error.
        unknown: events of another release that were left out, by kind.
        total_s: when the run ended or, where it did not, when its last event was written.
        ended: whether the log has its last event.
        error: what went wrong and ended the run, or None.
        reason: why the run ended early on purpose, or None.
    """

    started: RunStarted
    rounds: tuple[CompletedRound, ...]
    compute_s: tuple[float, ...]
    steps: tuple[StepDone, ...]
    accuracy: tuple[AccuracyPoint, ...]
    links: Mapping[tuple[int, int], tuple[LinkBytes, ...]]
    measured: Mapping[tuple[int, int], tuple[LinkMeasured, ...]]
    plans: tuple[PlanIssued, ...]
    versions: Mapping[int, int]
    waits: tuple[Wait, ...]
    checked_rounds: int
    disputes: tuple[Dispute, ...]
    checksums: Mapping[int, int]
    faults: tuple[FaultInjected, ...]
    lost: tuple[SiteLost, ...]
    returned: tuple[SiteJoined, ...]
    pace: PaceSummary | None
    transports: tuple[TransportChosen, ...]
    refused: Mapping[str, int]
    unknown: Mapping[str, int]
    total_s: float
    ended: bool
    error: str | None
    reason: str | None

    @property
    def label(self) -> str:
        """The run's name."""
        return self.started.label

    @property
    def simulated(self) -> bool:
        """Whether the run took place in virtual time."""
        return self.started.world == "simulated"

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
        """How long it took from the end of one completed round to the end of the next, seconds.

        Unlike ``round_s``, which is what the exchange takes, this has everything in it: computing,
        waiting for others, evaluating. The first counts from the beginning of the run.
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

        None before the first completed round, and where links were not shaped: a prediction for
        the overlay says nothing of a run that did not feel its rates.
        """
        measured_s = self.median_round_s
        if measured_s is None or not self.started.shaped or self.started.predicted_s <= 0:
            return None
        return measured_s / self.started.predicted_s

    @property
    def share_of_limit(self) -> float | None:
        """The shortest possible round time over the median one.

        None as for the prediction, and where the shortest possible one was not computed.
        """
        measured_s, limit_s = self.median_round_s, self.started.limit_s
        if limit_s is None or measured_s is None or not self.started.shaped or measured_s <= 0:
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

    def time_to_accuracy_s(self, target: float) -> float | None:
        """Return when the accuracy first was at least the target, or None where it never was."""
        return next((point.at_s for point in self.accuracy if point.accuracy >= target), None)

    @property
    def checksums_agree(self) -> bool | None:
        """Whether every checked round ended alike on all sites; None where none was checked."""
        return not self.disputes if self.checked_rounds else None

    @property
    def link_bytes(self) -> dict[tuple[int, int], int]:
        """Payload each link carried in the whole run, bytes, by (source, target)."""
        return {
            pair: sum(sample.payload_bytes for sample in samples)
            for pair, samples in self.links.items()
        }

    def utilisation(self, overlay: Overlay) -> dict[tuple[int, int], tuple[Utilisation, ...]]:
        """Return how busy each link of an overlay was over time, by (source, target).

        A link without a record has an empty series. Where a trace changes a link's rate, the rate
        at the middle of each interval counts.
        """
        return {
            (link.source, link.target): tuple(
                Utilisation(
                    sample.at_s,
                    sample.seconds,
                    8 * sample.payload_bytes / (_goodput_bps(link, sample) * sample.seconds),
                )
                for sample in self.links.get((link.source, link.target), ())
                if sample.seconds > 0
            )
            for link in overlay
        }


def _goodput_bps(link: Link, sample: LinkBytes) -> float:
    if link.trace is None:
        return link.goodput_bps
    return link.trace.rate_bps(sample.at_s - sample.seconds / 2) * (1 - link.loss)


def observed(runs: Iterable[RunSummary]) -> str:
    """Return the word for how these runs' figures were got: measured, simulated, or either."""
    words = sorted({"simulated" if run.simulated else "measured" for run in runs})
    return " or ".join(words) or "measured"


def summarise(events: Iterable[Event | UnknownEvent]) -> RunSummary:
    """Sum a run up.

    Args:
        events: as read from its log, from the first one on; it may end anywhere.

    Raises:
        ValueError: the events do not begin with `RunStarted`, or there is none.
    """
    events = iter(events)
    match next(events, None):
        case RunStarted() as started:
            tally = _Tally(started)
        case None:
            raise ValueError("the log is empty: the run died before it began; run it again")
        case first:
            raise ValueError(
                f"the log begins with {first}, not with run_started; give all of its events"
            )
    for event in events:
        tally.add(event)
    return tally.summary()


class _Tally:
    """What the events so far add up to."""

    def __init__(self, started: RunStarted) -> None:
        self.started = started
        self.present = set(range(len(started.sites)))
        self.done: defaultdict[int, dict[int, RoundDone]] = defaultdict(dict)  # by round, site
        self.completed: set[int] = set()
        self.compute_s: defaultdict[int, defaultdict[int, float]] = defaultdict(
            lambda: defaultdict(float)  # by round, site
        )
        self.steps: list[StepDone] = []
        self.evaluated: defaultdict[int, list[Evaluated]] = defaultdict(list)
        self.links: defaultdict[tuple[int, int], list[LinkBytes]] = defaultdict(list)
        self.measured: defaultdict[tuple[int, int], list[LinkMeasured]] = defaultdict(list)
        self.plans: list[PlanIssued] = []
        self.fixed: dict[int, int] = {}  # version by round, as the scheduler said
        self.refused: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.faults: list[FaultInjected] = []
        self.lost: list[SiteLost] = []
        self.returned: list[SiteJoined] = []
        self.transports: list[TransportChosen] = []
        self.paced: list[Paced] = []
        self.total_s = 0.0
        self.end: RunEnded | None = None

    def add(self, event: Event | UnknownEvent) -> None:
        # A site's clock may be wrong; the scheduler's, which tells the end, is right.
        is_end = isinstance(event, RunEnded)
        self.total_s = event.at_s if is_end else max(self.total_s, event.at_s)
        match event:
            case RoundDone():
                self.done[event.round][event.site] = event
                self._complete([event.round])
            case StepDone():
                self.steps.append(event)
                self.compute_s[event.round][event.site] += event.compute_s
            case Evaluated():
                self.evaluated[event.round].append(event)
            case LinkBytes():
                self.links[event.source, event.target].append(event)
            case LinkMeasured():
                self.measured[event.source, event.target].append(event)
            case PlanIssued():
                self.plans.append(event)
            case RoundBegan():
                self.fixed[event.round] = event.version
            case MessageRefused():
                self.refused[event.error] += 1
            case SiteJoined():
                self.present.add(event.site)
                if any(lost.site == event.site for lost in self.lost):
                    self.returned.append(event)
            case SiteLost():
                self.lost.append(event)
                self.paced.append(event)
                self.present.discard(event.site)
                self._complete(self.done)  # survivors may have been waiting for this one only
            case WorkerWent() | ProceedAsked() | UpdateCame() | UpdateApplied() | UpdateDiscarded():
                self.paced.append(event)
            case TransportChosen():
                self.transports.append(event)
            case FaultInjected():
                self.faults.append(event)
            case RunEnded():
                self.end = event
            case UnknownEvent():
                self.unknown[event.kind] += 1
            case RunStarted():
                raise ValueError("the log has a second run_started; give the events of one run")

    def _complete(self, rounds: Iterable[int]) -> None:
        if self.present:
            self.completed.update(r for r in rounds if self.present <= self.done[r].keys())

    def _accurate_s(self, number: int, group: list[Evaluated]) -> float:
        if number in self.completed:  # told by the scheduler's clock; a site's may be wrong
            return max(done.at_s for done in self.done[number].values())
        return max(event.at_s for event in group)

    def _versions(self) -> dict[int, int]:
        told = {number: _last(by_site.values()).version for number, by_site in self.done.items()}
        return dict(sorted({**told, **self.fixed}.items()))

    def _waits(self) -> tuple[Wait, ...]:
        done = (event for by_site in self.done.values() for event in by_site.values())
        if all(event.waited_for is None for event in done):
            return ()
        return tuple(_wait(number, self.done[number]) for number in sorted(self.completed))

    def summary(self) -> RunSummary:
        checksums = {
            number: {
                site: done.checksum
                for site, done in sorted(by_site.items())
                if done.checksum is not None
            }
            for number, by_site in sorted(self.done.items())
        }
        checked = {number: sums for number, sums in checksums.items() if len(sums) > 1}
        return RunSummary(
            started=self.started,
            rounds=tuple(
                _completed_round(number, self.done[number].values())
                for number in sorted(self.completed)
            ),
            compute_s=tuple(max(by_site.values()) for _, by_site in sorted(self.compute_s.items())),
            steps=tuple(sorted(self.steps, key=lambda step: step.at_s)),
            accuracy=tuple(
                AccuracyPoint(
                    self._accurate_s(number, group), number, fmean(e.accuracy for e in group)
                )
                for number, group in sorted(self.evaluated.items())
            ),
            links={
                pair: tuple(sorted(samples, key=lambda sample: sample.at_s))
                for pair, samples in sorted(self.links.items())
            },
            measured={
                pair: tuple(sorted(series, key=lambda estimate: estimate.at_s))
                for pair, series in sorted(self.measured.items())
            },
            plans=tuple(self.plans),
            versions=self._versions(),
            waits=self._waits(),
            checked_rounds=len(checked),
            disputes=tuple(
                Dispute(number, dissenters)
                for number, sums in checked.items()
                if (dissenters := _dissenters(sums))
            ),
            checksums={
                number: next(iter(sums.values()))
                for number, sums in checked.items()
                if not _dissenters(sums)
            },
            faults=tuple(self.faults),
            lost=tuple(self.lost),
            returned=tuple(self.returned),
            pace=summarise_pace(self.paced),
            transports=tuple(self.transports),
            refused=dict(sorted(self.refused.items())),
            unknown=dict(sorted(self.unknown.items())),
            total_s=self.total_s,
            ended=self.end is not None,
            error=self.end.error if self.end else None,
            reason=self.end.reason if self.end else None,
        )


def _completed_round(number: int, done: Collection[RoundDone]) -> CompletedRound:
    last = _last(done)
    return CompletedRound(number, last.version, last.at_s, max(event.seconds for event in done))


def _last(done: Collection[RoundDone]) -> RoundDone:
    return max(done, key=lambda event: event.at_s)


def _wait(number: int, done: Mapping[int, RoundDone]) -> Wait:
    """Follow the sites' pointers back from the one that finished last."""
    last = _last(done.values())
    sites, tree = [last.site], None
    at = last
    while at.waited_for is not None and at.waited_for not in sites:
        sites.append(at.waited_for)
        tree = at.tree
        before = done.get(at.waited_for)
        # One that has the result of an earlier attempt only says nothing of this one.
        if before is None or before.version != last.version:
            return Wait(number, tuple(sites), tree, circular=False)
        at = before
    return Wait(number, tuple(sites), tree, circular=at.waited_for is not None)


def _dissenters(checksums: Mapping[int, int]) -> tuple[int, ...]:
    """Return the sites whose checksum is not the commonest."""
    # Counter keeps the order of first sight and max the first of equals: the lowest site decides.
    votes = Counter(checksums.values())
    right = max(votes, key=lambda checksum: votes[checksum])
    return tuple(site for site, checksum in checksums.items() if checksum != right)
