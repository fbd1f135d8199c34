"""R²SP, Table III: unequal workers wait for their turns, unless their batches are tuned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from anabranch.fleet import Compute, SiteCompute
from anabranch.pace import AnyLoad, EqualBatches, R2sp, TunedBatches
from anabranch_lab.tasks.profiles import RESNET_32_INSTANCES, Instance
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, Trial, WorkerOutcome
from papers.r2sp import _setting as setting
from papers.r2sp._setting import RESNET32

_BATCH, _MOST = 512, 4096


@dataclass(frozen=True, slots=True)
class Kind:
    """An instance type of the paper's cluster B, and its values in Table III.

    Args:
        instance: its speed, and the part of a step that does not grow with the batch.
        workers: the numbers of its workers.
        blocked_s: wait in an iteration, with equal batches.
        tuned: samples of its tuned batch.
    """

    instance: Instance
    workers: range
    blocked_s: float
    tuned: int

    @property
    def name(self) -> str:
        """The paper's name for it."""
        return self.instance.name

    @property
    def samples_per_s(self) -> float:
        """Its speed."""
        return self.instance.samples_per_s

    @property
    def slowest_s(self) -> float:
        """The slowest worker's iteration that would explain this one's wait, seconds."""
        return self.blocked_s + _BATCH / self.samples_per_s


KINDS = tuple(
    Kind(instance, workers, blocked_s, tuned)
    for instance, workers, blocked_s, tuned in zip(
        RESNET_32_INSTANCES,
        (range(1, 3), range(3, 5), range(5, 9)),
        (0.0, 0.62, 0.82),
        (512, 901, 1264),
        strict=True,
    )
)
SLOWEST = KINDS[0]
_LOADS: Mapping[str, AnyLoad] = {
    "equal": EqualBatches(),
    "tuned": TunedBatches(most=_MOST),
}


def _make(lab: Lab) -> Result:
    iterations = 40 if lab.quick else 200
    outcomes = lab.measure(
        [_trial(load, fixed, iterations) for fixed in (False, True) for load in _LOADS]
    )
    runs = {
        fixed: {load: _run(outcomes, load, fixed) for load in _LOADS} for fixed in (False, True)
    }
    rows = []
    for kind in KINDS:
        blocked = {fixed: _blocked_s(runs[fixed]["equal"], kind) for fixed in runs}
        rows.append(
            Row(
                f"{kind.name}: blocked with equal batches",
                f"{kind.blocked_s:g} s",
                f"{blocked[True]:.2f} s",
                "" if kind is SLOWEST else _why_blocked(kind),
                literal=f"{blocked[False]:.2f} s",
                seeds="no jitter",
            )
        )
        batches = {
            fixed: fmean(each.samples for each in _of(runs[fixed]["tuned"], kind)) for fixed in runs
        }
        rows.append(
            Row(
                f"{kind.name}: tuned batch",
                f"{kind.tuned}",
                f"{batches[True]:.0f} (then blocked {_blocked_s(runs[True]['tuned'], kind):.2f} s)",
                "" if kind is SLOWEST else _why_tuned(kind),
                literal=f"{batches[False]:.0f}",
                seeds="no jitter",
            )
        )
    gains = []
    for fixed in runs:
        equal, tuned = (_samples_per_s(runs[fixed][load].workers.values()) for load in _LOADS)
        gains.append(f"+{tuned / equal - 1:.0%} ({equal:.0f} to {tuned:.0f})")
    rows.append(
        Row(
            "all: samples/s, tuned over equal batches",
            "converges about 40 % faster",
            gains[1],
            "samples, not convergence, which is in fig11",
            literal=gains[0],
            seeds="no jitter",
        )
    )
    notes = (
        "8 workers of three speeds, 2 servers, ports of 10 Gbit/s, ResNet32, batches of 512, R²SP "
        "with r = 0.8; means over the later half. Literal: the paper's speeds alone. Ours: steps "
        "with a fixed part, which its waits and batches imply.",
    )
    return Result(tuple(rows), notes)


def _trial(load: str, fixed: bool, iterations: int) -> Trial:
    overlay = setting.cluster(workers=setting.WORKERS_1, servers=setting.SERVERS_1)
    sites = {
        f"worker-{k}": SiteCompute(
            samples_per_s=kind.samples_per_s, fixed_s=kind.instance.fixed_s if fixed else 0.0
        )
        for kind in KINDS
        for k in kind.workers
    }
    compute = Compute(samples_per_s=SLOWEST.samples_per_s, sites=sites)
    elements = RESNET32.elements
    scenario = setting.served(elements, R2sp(), iterations, overlay, compute, _BATCH, _LOADS[load])
    return Trial({"load": load, "fixed": int(fixed)}, scenario, overlay)


def _run(outcomes: Iterable[Outcome], load: str, fixed: bool) -> Outcome:
    (found,) = [each for each in outcomes if each.labels == {"load": load, "fixed": fixed}]
    return found


def _of(run: Outcome, kind: Kind) -> list[WorkerOutcome]:
    return [run.workers[f"worker-{k}"] for k in kind.workers]


def _blocked_s(run: Outcome, kind: Kind) -> float:
    return fmean(each.blocked_s for each in _of(run, kind))


def _samples_per_s(workers: Iterable[WorkerOutcome]) -> float:
    return sum(each.samples / each.iteration_s for each in workers)


def _why_blocked(kind: Kind) -> str:
    by_speeds_s = _BATCH / SLOWEST.samples_per_s - _BATCH / kind.samples_per_s
    return (
        f"by the paper's own speeds {by_speeds_s:.2f} s; its wait needs a slowest iteration of "
        f"{kind.slowest_s:.2f} s, not {SLOWEST.slowest_s:.2f} s"
    )


def _why_tuned(kind: Kind) -> str:
    theirs = _BATCH + kind.blocked_s * kind.samples_per_s
    return f"the paper's is 512 and its wait times its speed: {theirs:.0f}"


EXPERIMENTS = (Experiment("r2sp/table3", "unequal workers, with and without tuned batches", _make),)
