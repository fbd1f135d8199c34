"""Read the outcome of a run in its event log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from anabranch.log import Event, RunSummary, UnknownEvent, UpdateApplied, read_events, summarise
from anabranch.log.events import REACHED_BY, StepDone
from anabranch.log.pacing import Iteration, PaceSummary
from anabranch.plan import loads as load_plan
from anabranch_lab.run.scenario.tasks import Train
from papers._trial import Outcome, Trial, WorkerOutcome

CURVE_POINTS = 120


def outcome_of(trial: Trial, file: str, log: Path) -> Outcome:
    """Return what the event log of a trial tells; `file` has its scenario."""
    events = [event for _, event in read_events(log)]
    run = summarise(events)
    if run.pace is not None:
        return _served(trial, file, run, run.pace, events)
    done, target = _of_rounds(trial, file, run), trial.scenario.task.target_accuracy
    if trial.scenario.has_local_steps and target is not None:
        return _of_local_steps(run, done, target, trial.scenario.stop.after_s or math.inf)
    return done


def _served(
    trial: Trial,
    file: str,
    run: RunSummary,
    pace: PaceSummary,
    events: Sequence[Event | UnknownEvent],
) -> Outcome:
    """Return the outcome of a run with servers."""
    assert pace.iteration_s is not None  # experiments have several iterations
    target = trial.scenario.task.target_accuracy
    reached_s = None if target is None else run.time_to_accuracy_s(target)
    return Outcome(
        labels=trial.labels,
        scenario_file=file,
        rounds=min(len(series) for series in pace.iterations.values()),
        total_s=run.total_s,
        round_s=pace.iteration_s,
        plans=0,
        at_once=pace.at_once,
        blocked_s=pace.blocked_s,
        push_s=pace.push_s,
        pull_s=pace.pull_s,
        workers={
            trial.overlay.sites[site].name: _worker(series)
            for site, series in pace.iterations.items()
            if any(each.next_s is not None for each in series)
        },
        reached_s=reached_s,
        reached_updates=_updates_until(events, reached_s, len(pace.iterations)),
        accuracy=run.final_accuracy,
        look_s=run.accuracy[-1].at_s / len(run.accuracy) if run.accuracy else None,
        trees=len(load_plan(run.started.plan_json).groups) or None,
        accuracy_by_site={run.sites[site]: each for site, each in run.site_accuracy.items()},
        missed=pace.mean_missed,
        sent_bytes=None if target is None else run.bytes_to_accuracy(target),
        curve=thinned(_curve(run)),
        loss_fell_s=_loss_fell_s(trial, run, len(pace.iterations)),
        gaps=pace.gaps,
    )


def _of_rounds(trial: Trial, file: str, run: RunSummary) -> Outcome:
    """Return the outcome of a run without servers."""
    rounds, total_s = len(run.rounds), run.rounds[-1].at_s if run.rounds else run.total_s
    fills_time = trial.scenario.stop.after_s is not None
    round_s = total_s / max(1, rounds) if fills_time else median(run.interval_s)
    done = Outcome(trial.labels, file, rounds, total_s, round_s, len(run.plans))
    target = trial.scenario.task.target_accuracy
    if target is not None:
        reached_s = run.time_to_accuracy_s(target)
        return replace(
            done,
            reached_s=reached_s,
            reached_updates=_rounds_until(run, reached_s),
            sent_bytes=run.bytes_to_accuracy(target),
            accuracy=run.final_accuracy,
            loss_fell_s=_loss_fell_s(trial, run, len(run.sites)),
        )
    if isinstance(trial.scenario.task, Train):
        return replace(done, accuracy=run.final_accuracy, curve=_curve(run))
    return done


def _of_local_steps(run: RunSummary, done: Outcome, target: float, ends_s: float) -> Outcome:
    """Add what each rule says of a run whose sites' models differ.

    Such sites go on until their models are averaged, though the time is over at `ends_s`.
    """
    reached = {rule: run.time_to_accuracy_s(target, rule) for rule in REACHED_BY}
    in_time = {rule for rule, at_s in reached.items() if at_s is not None and at_s <= ends_s}
    if done.reached_s is not None and done.reached_s > ends_s:
        done = replace(done, reached_s=None, reached_updates=None, sent_bytes=None)
    return replace(
        done,
        steps=len(run.steps) / len(run.sites),
        reached_by={rule: reached[rule] if rule in in_time else None for rule in REACHED_BY},
        sent_by={
            rule: run.bytes_to_accuracy(target, rule) if rule in in_time else None
            for rule in REACHED_BY
        },
        curve=_curve(run),
    )


def _updates_until(
    events: Sequence[Event | UnknownEvent], at_s: float | None, workers: int
) -> float | None:
    """Return how many updates of each worker were applied by a time, on average."""
    if at_s is None:
        return None
    return sum(isinstance(each, UpdateApplied) and each.at_s <= at_s for each in events) / workers


def _curve(run: RunSummary) -> tuple[tuple[float, float], ...]:
    return tuple((point.at_s, point.accuracy) for point in run.accuracy)


def thinned(
    curve: Sequence[tuple[float, float]], most: int = CURVE_POINTS
) -> tuple[tuple[float, float], ...]:
    """Return at most so many points of a curve, evenly spaced, its last one included.

    >>> thinned([(1.0, 0.1), (2.0, 0.2), (3.0, 0.3), (4.00004, 0.4)], most=2)
    ((2.0, 0.2), (4.0, 0.4))
    """
    every = -(-len(curve) // most)
    kept = curve[(len(curve) - 1) % every :: every] if curve else ()
    return tuple((round(at_s, 4), round(accuracy, 5)) for at_s, accuracy in kept)


def _rounds_until(run: RunSummary, at_s: float | None) -> float | None:
    return None if at_s is None else sum(each.at_s <= at_s for each in run.rounds)


def _loss_fell_s(trial: Trial, run: RunSummary, workers: int) -> float | None:
    return None if trial.loss is None else fell_s(run.steps, workers, trial.loss)


def fell_s(
    steps: Sequence[StepDone], workers: int, below: float, running: int = 10
) -> float | None:
    """Return when the loss had been below a bound in `running` iterations running, or None.

    An iteration is as many steps as there are workers. They need not be of different workers: under
    some paces a few workers make most steps.
    """
    told = [(step.at_s, step.loss) for step in steps if step.loss is not None]
    since = 0
    for first in range(0, len(told) - workers + 1, workers):
        iteration = told[first : first + workers]
        since = since + 1 if fmean(loss for _, loss in iteration) < below else 0
        if since == running:
            return iteration[-1][0]
    return None


def _worker(series: Sequence[Iteration]) -> WorkerOutcome:
    ended = [(each, each.next_s - each.went_s) for each in series if each.next_s is not None]
    later = ended[len(ended) // 2 :]
    return WorkerOutcome(
        fmean(took_s for _, took_s in later),
        fmean(each.blocked_s for each, _ in later),
        fmean(each.samples for each, _ in later),
        fmean(each.compute_s for each, _ in later),
    )
