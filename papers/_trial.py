"""One run of an experiment to make, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace

from anabranch._typed_toml import listed, nearest
from anabranch.overlay import Overlay
from anabranch_lab.run.scenario import Scenario
from papers._record import default

Label = str | int | float


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to make.

    Args:
        labels: distinguish it from the experiment's other runs, such as its system.
        scenario: what runs, with one route; the lab names its overlay when it writes the file.
        overlay: the network.
        loss: the bound of :attr:`Outcome.loss_fell_s`; None: no such bound.
        without: fields of the outcome that the experiment does not use and does not record.

    Raises:
        ValueError: an outcome has no such field, or each needs it.
    """

    labels: Mapping[str, Label]
    scenario: Scenario
    overlay: Overlay
    loss: float | None = None
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.without:
            if name not in _DEFAULTS:
                near = nearest(name, _DEFAULTS) or f"there are {listed(_DEFAULTS)}"
                raise ValueError(f"no outcome can be without {name!r}; {near}")


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """The outcome of one worker of a run with servers; means over its later half of iterations.

    Args:
        iteration_s: from one permission to the next, seconds.
        blocked_s: the part of it that the worker waited for permission, seconds.
        samples: of a batch.
        compute_s: the part of it that the worker computed, seconds.
    """

    iteration_s: float
    blocked_s: float
    samples: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run.

    Args:
        labels: the trial's.
        scenario_file: the scenario, for ``anabranch simulate`` or ``anabranch run``.
        rounds: how many were completed.
        total_s: when the last round ended, seconds since the run began.
        round_s: seconds from one round's end to the next. For a run that fills a given time it is
            the mean. For a run with a given number of rounds it is the median; its network does not
            change.
        plans: how many came after the first.
        at_once, blocked_s, push_s, pull_s: of a run with servers, see
            :class:`anabranch.log.pacing.PaceSummary`; there ``round_s`` is the mean time of an
            iteration, and ``rounds`` is the least over the workers.
        workers: of a run with servers, by name; those that ended an iteration.
        reached_s: of a run that trains to a target accuracy: when an evaluation first reached it,
            seconds since the run began; None: never.
        reached_updates: of such a run, how many updates each worker had in the model by then, on
            average.
        accuracy: the last evaluated one; None: no evaluation.
        look_s: seconds from one evaluation to the next, on average; None: no evaluation.
        trees: of the first plan's forest; None: no forest.
        accuracy_by_site: the last one of each site, by name; see :mod:`anabranch.log.by_site`.
        missed: of a run with servers, how many updates of others an update missed, on average.
        steps: of a run that averages models, local steps of a site, on average.
        reached_by: of a run whose sites' models differ, when the target was reached, seconds, by
            the rules of :mod:`anabranch.log.target`; None: never.
        sent_bytes: of a run to a target, the payload of all links until ``reached_s``, bytes.
        sent_by: of a run with ``reached_by``, the payload of all links until the target was
            reached by each rule, bytes.
        curve: of a run with servers or ``reached_by``, or without target: (seconds, mean accuracy
            over the sites) of each evaluated step; with servers, of `CURVE_POINTS` at most.
        loss_fell_s: of a trial with a loss: when the mean loss of an iteration's steps had been
            below it in 10 iterations running, seconds; None: never.
        gaps: of a run with servers, see :class:`anabranch.log.pacing.PaceSummary`.
        aborted: why it ended early, such as a loss that is not a number; None: it did not.
    """

    labels: Mapping[str, Label]
    scenario_file: str
    rounds: int
    total_s: float
    round_s: float
    plans: int
    at_once: float | None = None
    blocked_s: float | None = None
    push_s: float | None = None
    pull_s: float | None = None
    workers: Mapping[str, WorkerOutcome] = field(default_factory=dict)
    reached_s: float | None = None
    reached_updates: float | None = None
    accuracy: float | None = None
    look_s: float | None = None
    trees: int | None = None
    accuracy_by_site: Mapping[str, float] = field(default_factory=dict)
    missed: float | None = None
    steps: float | None = None
    sent_bytes: int | None = None
    reached_by: Mapping[str, float | None] = field(default_factory=dict)
    sent_by: Mapping[str, int | None] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()
    loss_fell_s: float | None = None
    gaps: tuple[float, ...] = ()
    aborted: str | None = None


_DEFAULTS = {
    each.name: default(each)
    for each in fields(Outcome)
    if default(each) is not MISSING and each.name != "aborted"
}


def used(trial: Trial, outcome: Outcome) -> Outcome:
    """Return an outcome without the fields that its experiment does not use."""
    return replace(outcome, **{name: _DEFAULTS[name] for name in trial.without})


def chosen(outcomes: Iterable[Outcome], **labels: Label) -> list[Outcome]:
    """Return the outcomes that have these labels, in order."""
    return [each for each in outcomes if labels.items() <= each.labels.items()]


def seconds(outcomes: Iterable[Outcome], **labels: Label) -> float:
    """Return the seconds a round took in the runs with these labels.

    For several runs it is their mean, weighted by rounds. So for runs of equal length it is their
    total time over their total number of rounds.

    Raises:
        ValueError: no run has these labels.
    """
    found = chosen(outcomes, **labels)
    if not found:
        raise ValueError(f"no run has the labels {labels}")
    return sum(each.round_s * each.rounds for each in found) / sum(each.rounds for each in found)
