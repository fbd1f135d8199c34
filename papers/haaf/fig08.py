"""HAAF, Fig. 8: the gradients of three trees' roots in the plane of two principal components."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from anabranch.merge import Fairness, Product, Staleness
from anabranch.pace import Asp
from anabranch.plan import EdaForest, ForestRoute
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import encode
from anabranch_lab.run.scenario.tasks import Own
from anabranch_lab.run.work import buffer_elements
from anabranch_lab.tasks.sampling import Shuffled
from papers._experiment import Experiment
from papers._lab import Lab, Trial
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._watched import read

Floats = npt.NDArray[np.floating]

_WATCHED = "papers.haaf._watched"
_GINI = 0.3
_TREES = 3
_HORIZON_S = 60.0
_PAPER = {
    "fastest": "is near an optimum early (drawn only)",
    "slowest": "keeps exploring, its loss stays higher (drawn only)",
}


@dataclass(frozen=True, slots=True)
class _Seen:
    """The gradients of one tree's root.

    Args:
        period_s: of the tree.
        places: in the plane of two components, shape (updates, 2).
        moves: the root mean square distance of its gradients from their mean, over the length of
            that mean: in the first half of its updates, and in the second.
        losses: mean losses, in both halves.
    """

    period_s: float
    places: Floats
    moves: tuple[float, float]
    losses: tuple[float, float]


def _make(lab: Lab) -> Result:
    found: list[tuple[int, list[_Seen], float]] = []
    for seed in setting.seeds(lab, 5):
        with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
            found.append((seed, *_run(lab, seed, Path(folder))))
    rows = [
        Row(
            "share of the variance that two components have",
            "",
            setting.spread([100 * share for _, _, share in found], ".0f") + " %",
        )
    ]
    for name, place in (("fastest", 0), ("slowest", -1)):
        trees = [seen[place] for _, seen, _ in found]
        rows += [
            Row(
                f"the {name} tree: period, updates",
                "",
                f"{setting.spread([tree.period_s for tree in trees], '.1f')} s, "
                f"{setting.spread([len(tree.places) for tree in trees], '.0f')}",
            ),
            Row(
                f"the {name} tree: how far gradients lie from their mean, over its length",
                _PAPER[name],
                _halves([tree.moves for tree in trees], ".1f"),
            ),
            Row(f"the {name} tree: loss", "", _halves([tree.losses for tree in trees], ".2f")),
        ]
    trajectories = [
        {
            "seed": seed,
            "share_of_variance": round(share, 3),
            "trees": [
                {
                    "period_s": round(tree.period_s, 3),
                    "losses": tree.losses,
                    "apart": tree.moves,
                    "places": tree.places.round(4).tolist(),
                }
                for tree in seen
            ],
        }
        for seed, seen, share in found
    ]
    what = (
        f"Gini {_GINI:g}, the best forest of at most {_TREES} trees that the paper's search finds, "
        f"{_HORIZON_S:g} s. The gradients are those that roots compute themselves. A tree's "
        "update weighs by staleness and fairness, and not by data: the work is code of its own "
        "here, which does not say how many samples it has. The components are those of all three "
        "roots' gradients together, less their mean."
    )
    return Result(tuple(rows), setting.notes(lab, (), what), {"trajectories": trajectories})


def _halves(figures: Sequence[tuple[float, float]], form: str) -> str:
    first, second = (setting.spread(each, form) for each in zip(*figures, strict=True))
    return f"{first} in the first half of its updates, {second} in the second"


def _run(lab: Lab, seed: int, folder: Path) -> tuple[list[_Seen], float]:
    """Return the gradients of a run's roots, fast trees first, and the components' share."""
    merge = Product(of=(Fairness(q=1.0), Staleness(a=0.8)))
    search = EdaForest(most_trees=_TREES)
    route = ForestRoute(server=f"site{setting.WORKERS}", search=search)
    trial = setting.trial(
        lab, setting.Scheme(route, Asp(), merge), _GINI, seed, to_target=False, horizon_s=_HORIZON_S
    )
    names = tuple(site.name for site in trial.overlay.sites)
    elements = buffer_elements(trial.scenario, names, lab.data_dir)
    route = structs.replace(route, elements=elements)  # own code does not tell the scheduler
    plan = first_plan(structs.replace(trial.scenario, route=route), trial.overlay)
    server = plan.trees[0].root
    roots = [each.plan.trees[0].up.index(server) for each in plan.groups]
    task = trial.scenario.task
    own = Own(
        factory=f"{_WATCHED}:make",
        options={"scenario": encode(trial.scenario), "sites": roots, "folder": str(folder)},
        batch_size=task.batch_size,
        evaluate_every=setting.MANY,
    )
    scenario = structs.replace(trial.scenario, route=route, task=own, sampling=Shuffled())
    (outcome,) = lab.measure([Trial(trial.labels, scenario, trial.overlay)])
    found = {root: read(folder, root, elements) for root in roots}
    places, share = components({root: gradients for root, (_, gradients) in found.items()})
    seen = [
        _Seen(
            outcome.workers[names[root]].iteration_s,
            places[root],
            in_halves(_apart, gradients),
            in_halves(np.mean, losses),
        )
        for root, (losses, gradients) in found.items()
    ]
    return sorted(seen, key=lambda each: each.period_s), share


def components(by_root: Mapping[int, Floats]) -> tuple[dict[int, Floats], float]:
    """Return gradients in the plane of their two principal components.

    Args:
        by_root: of each root, shape (updates, elements).

    Returns:
        For each root, shape (updates, 2); and the two components' share of all variance.

    >>> line = {0: np.array([[0.0, 0.0], [3.0, 4.0]]), 1: np.array([[6.0, 8.0]])}
    >>> places, share = components(line)
    >>> np.abs(places[0][:, 0] - places[1][0, 0]).round(3).tolist(), round(share, 3)
    ([10.0, 5.0], 1.0)
    """
    everything = np.concatenate([*by_root.values()])
    everything = everything - everything.mean(axis=0)
    # The thin SVD has as many components as gradients, which are fewer than their elements.
    left, lengths, _ = np.linalg.svd(everything, full_matrices=False)
    placed = left[:, :2] * lengths[:2]
    ends = np.cumsum([len(each) for each in by_root.values()])[:-1]
    parts = np.split(placed, ends)
    share = float(np.sum(lengths[:2] ** 2) / np.sum(lengths**2))
    return dict(zip(by_root, parts, strict=True)), share


def in_halves(figure: Callable[[Floats], Any], of: Floats) -> tuple[float, float]:
    """Return a statistic of the first half of some rows, and of the second."""
    half = len(of) // 2
    return float(figure(of[:half])), float(figure(of[half:]))


def _apart(gradients: Floats) -> float:
    mean = np.mean(gradients, axis=0)
    off = np.mean(np.sum((gradients - mean) ** 2, axis=1))
    return float(np.sqrt(off) / np.linalg.norm(mean))


EXPERIMENT = Experiment("haaf/fig08", "where gradients of trees' roots lie", _make)
