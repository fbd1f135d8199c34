"""A lab whose runs and jobs come to what a table says, so that rows can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch._typed_toml import tag_of
from anabranch.train.schedules import Constant
from anabranch_lab.run.scenario.tasks import Exchange, Train
from anabranch_lab.tasks.profiles import ALEXNET
from papers import EXPERIMENTS, Lab, Outcome, Trial, WorkerOutcome
from papers.haaf import _setting as haaf
from papers.haaf import fig08, fig13, trees
from papers.intermittent._literal import Literal
from papers.intermittent._runs import Job
from papers.intermittent._runs import Made as MadeLiterally
from papers.r2sp import _federated as federated
from papers.r2sp import edges, fig01, fig05, fig15
from papers.r2sp._federated import Seen
from papers.r2sp.fig04 import search
from papers.r2sp.fig15 import Trained

SECONDS = {
    "star": 100.0,
    "balanced": 80.0,
    "mst": 50.0,
    "fapt": 25.0,
    "packed": 10.0,
    "forest": 15.0,
}


class ToldLab(Lab):
    """A lab whose runs take what a table says, by their route and what they exchange."""

    trials: Sequence[Trial] = ()

    def measure(
        self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
    ) -> list[Outcome]:
        self.trials = list(trials)
        told = []
        for trial in trials:
            round_s = SECONDS[tag_of(trial.scenario.routes[0])]
            task = trial.scenario.task
            if isinstance(task, Exchange):
                round_s *= task.buffer_elements / ALEXNET.elements
            names = [trial.overlay.sites[k].name for k in trial.scenario.workers(trial.overlay)]
            workers = {name: WorkerOutcome(round_s, 0.1, 600.0, 0.8 * round_s) for name in names}
            served = (0.5, 0.1, 0.2 * round_s, 0.3 * round_s, workers)
            told.append(Outcome(trial.labels, "told.toml", 4, 4 * round_s, round_s, 0, *served))
            if tag_of(trial.scenario.routes[0]) == "forest":
                told[-1] = replace(told[-1], trees=3)
            if isinstance(task, Train):  # the larger the steps, the sooner, but not always
                most = 0.3 if isinstance(task.schedule, Constant) else 2.0
                reached_s = None if task.learning_rate > most and trial.scenario.seed else round_s
                seen = {"accuracy": 0.5, "accuracy_by_site": {"a": 0.4, "b": 0.6}}
                seen["curve"] = ((0.5 * round_s, 0.7), (round_s, 0.8))
                told[-1] = replace(told[-1], reached_s=reached_s, reached_updates=4.0, **seen)
        return told

    def map(self, make: Callable[..., Any], jobs: Sequence[Any], kind: type) -> list[Any]:
        how = getattr(make, "func", make)
        return [_made(how, job) for job in jobs]


def _made(how: Callable[..., Any], job: Any) -> Any:
    """Return what a job comes to, as it is told."""
    if how is federated.observe:
        groups = job.under.groups
        return Seen(10.0 / groups, 0.1, 2.0 / groups, 0.5, 1.0, 0.1, 3e6 / groups)
    if how is fig15.train:
        looks = fig15.Look(1.0, 1.0, 0.5), fig15.Look(2.0, 2.0, 0.7 + job.seed / 1000)
        return Trained(looks, 2, 1, (0.2, 0.8))
    if how is fig01.watch:
        return fig01.Traffic((0.6, 0.4), (0.125, 0.25), (((1.0, 4.0, 0.5, 0.5),),) * 2)
    if how is fig05.time:
        return fig05.Timed(tuple(0.1 + 0.01 * batch for batch in job[1]))
    if how is search:
        return search(job)
    if how is fig08.watch:
        fast = fig08.Rooted(1.0, [(0.0, 1.0)] * 4, (1.0, 1.0), (2.0, 1.0))
        return fig08.Seen([fast, replace(fast, period_s=3.0, losses=(2.0, 1.5))], 0.4)
    if how is fig13.similarity:
        return fig13.Alike([[1.0, job.beta], [job.beta, 1.0]], [[1.0, 0.5], [0.5, 1.0]])
    if how is trees.plan:
        groups = [[("site0", "site1")], [("site0",), ("site1",)]]
        told = [trees.Planned(tuple(each), 0.25) for each in groups]
        return told * 6 if job.all_numbers else told[1:]
    if how is haaf.batches_end_s:
        return 20.0
    if how is edges.train:
        reached_s = 10.0 * job.clients + job.seed
        return edges.Trained(reached_s, ((9.0, 0.7), (reached_s, 0.8)))
    assert isinstance(job, Job)
    return MadeLiterally([], Literal({"first": 10.0 + job.seed, "mean": 20.0, "all": None}))


def lab(tmp_path: Path, quick: bool = True, emulate: bool = False) -> ToldLab:
    return ToldLab(tmp_path, quick=quick, seed=5, emulate=emulate)


def ours(name: str, what: str, tmp_path: Path) -> str:
    (row,) = [row for row in EXPERIMENTS[name].make(lab(tmp_path)).rows if row.what == what]
    return row.ours
