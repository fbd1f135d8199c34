"""HAAF, Fig. 8: the gradients of three trees' roots in the plane of two principal components."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import structs

from anabranch.merge import Fairness, Product, Staleness
from anabranch.plan import ForestRoute
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import encode
from anabranch_lab.run.scenario.tasks import Own
from anabranch_lab.run.work import buffer_elements
from anabranch_lab.tasks.sampling import Shuffled
from papers._compare import spread
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import Trial
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import FEW, LENET, RATE, Case, Learner, haaf
from papers.haaf._watched import read
from papers.haaf.fig09 import CNN

Floats = npt.NDArray[np.floating]

_WATCHED = "papers.haaf._watched"
_GINI = 0.3
_PAPER = '"relatively high in later stages"'
_EARLY = "the fast tree is quickly near a good optimum"
_APART = "the slow tree keeps exploring"
_RATE = 0.1  # of both models; literal is the paper's
_PARTS = 10  # of a tree's updates, in the picture
_LEARNERS = {  # with how many seeds
    "LeNet-5": (LENET, 8),
    "CNN-6": (replace(CNN, batches=700), 1),
}
_ALIKE = ("seeds", "trees", "period in s", "updates")  # whatever the learning rate
_NOTE = (
    f"Gini {_GINI:g}, the best forest of at most {FEW} trees that the paper's search finds, a "
    f"learning rate of {_RATE:g}, literal {RATE:g}. The gradients are those that roots compute "
    "themselves; apart is the root mean square distance of gradients from their mean, over the "
    "length of that mean. A "
    "tree's update weighs by staleness and fairness, and not by data: the work is code of its own "
    "here, which does not say how many samples it has. The components are those of all roots' "
    "gradients together; the picture has the first seed's, as means of a tenth of a tree's updates "
    "each, in order. CNN-6 learns a part of CIFAR-10 in batches of 32. It has fewer batches "
    "and one seed, for the time of two cores."
)


@dataclass(frozen=True, slots=True)
class Watch:
    """A run whose roots' gradients are kept.

    Args:
        learner, seed: see :class:`papers.haaf._setting.Case`.
        rate: the learning rate.
        quick: see :func:`papers.haaf._setting.scenario`.
    """

    learner: Learner
    seed: int
    rate: float
    quick: bool


@dataclass(frozen=True, slots=True)
class Rooted:
    """The gradients of one tree's root.

    Args:
        period_s: of the tree.
        places: in the plane of two components, one (x, y) for each update.
        apart: the root mean square distance of its gradients from their mean, over the length of
            that mean: in the first half of its updates, and in the second.
        losses: mean losses, in both halves.
    """

    period_s: float
    places: list[tuple[float, float]]
    apart: tuple[float, float]
    losses: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """The gradients of a run's roots, and the components' share of all variance.

    Args:
        trees: fast ones first.
        share: of two components.
    """

    trees: list[Rooted]
    share: float


def watch(of: Watch, data_dir: Path | None) -> Seen:
    """Return the gradients of the roots of a run's trees."""
    case = Case(_GINI, of.seed, of.learner)
    how = replace(haaf(FEW), merge=Product(of=(Fairness(q=1.0), Staleness(a=0.8))))
    scenario = setting.scenario(how, case, of.rate, quick=of.quick)
    overlay = setting.network(of.seed)
    names = tuple(site.name for site in overlay.sites)
    elements = buffer_elements(scenario, names, data_dir)
    assert isinstance(how.route, ForestRoute)
    route = structs.replace(how.route, elements=elements)  # own code does not tell the scheduler
    plan = first_plan(structs.replace(scenario, route=route), overlay)
    served = plan.trees[0].root
    roots = [each.plan.trees[0].up.index(served) for each in plan.groups]
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        own = Own(
            factory=f"{_WATCHED}:make",
            options={"scenario": encode(scenario), "sites": roots, "folder": folder},
            batch_size=scenario.task.batch_size,
            evaluate_every=setting.MANY,
        )
        run = structs.replace(
            scenario,
            route=route,
            task=own,
            sampling=Shuffled(),
            stop=structs.replace(scenario.stop, at_target=False),
        )
        (outcome,) = Lab(None, data_dir=data_dir).measure([Trial({}, run, overlay)])
        found = [read(Path(folder), root, elements) for root in roots]
        products = gram([gradients for _, gradients in found])
        losses_of = [np.array(losses) for losses, _ in found]
    parts = np.cumsum([0, *map(len, losses_of)])
    places, share = components(products)
    trees = [
        Rooted(
            outcome.workers[names[root]].iteration_s,
            places[begin:end].round(4).tolist(),
            *_in_halves(products[begin:end, begin:end], losses),
        )
        for root, losses, begin, end in zip(roots, losses_of, parts, parts[1:], strict=False)
    ]
    return Seen(sorted(trees, key=lambda each: each.period_s), share)


def gram(parts: Sequence[Floats], columns: int = 1 << 16) -> Floats:
    """Return the inner products of all rows of several matrices, without a copy of them.

    >>> gram([np.array([[1.0, 0.0]]), np.array([[1.0, 2.0]])]).tolist()
    [[1.0, 1.0], [1.0, 5.0]]
    """
    rows, width = sum(map(len, parts)), parts[0].shape[1]
    total = np.zeros((rows, rows))
    for begin in range(0, width, columns):
        some = np.concatenate([part[:, begin : begin + columns] for part in parts]).astype(float)
        total += some @ some.T
    return total


def components(products: Floats) -> tuple[Floats, float]:
    """Return where vectors lie in the plane of their two principal components.

    Args:
        products: the vectors' inner products, shape (n, n).

    Returns:
        Shape (n, 2), each component's largest value positive; and the two components' share of all
        variance.

    >>> line = np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    >>> places, share = components(line @ line.T)
    >>> np.abs(np.diff(places[:, 0])).round(3).tolist(), round(share, 3)
    ([5.0, 5.0], 1.0)
    """
    centred = products - products.mean(axis=0) - products.mean(axis=1)[:, None] + products.mean()
    values, vectors = np.linalg.eigh(centred)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    placed = vectors[:, :2] * np.sqrt(values[:2])
    placed *= np.sign(placed[np.abs(placed).argmax(axis=0), range(placed.shape[1])])
    return placed, float(values[:2].sum() / values.sum())


def _in_halves(products: Floats, losses: Floats) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return how far gradients are apart, and the mean losses, in both halves of the updates."""
    half = len(losses) // 2
    halves = (slice(None, half), slice(half, None))
    first, second = (apart(products[each, each]) for each in halves)
    early, late = (float(np.mean(losses[each])) for each in halves)
    return (first, second), (early, late)


def apart(products: Floats) -> float:
    """Return vectors' root mean square distance from their mean, over the length of that mean.

    Args:
        products: the vectors' inner products.

    >>> across = np.array([[1.0, 1.0], [1.0, -1.0]])
    >>> apart(across @ across.T)
    1.0
    """
    mean = products.mean()
    return float(np.sqrt((np.diag(products).mean() - mean) / mean))


def _make(lab: Lab) -> Result:
    jobs = {
        (name, rate): [Watch(learner, seed, rate, lab.quick) for seed in lab.seeds(count)]
        for name, (learner, count) in _LEARNERS.items()
        for rate in (_RATE, RATE)
    }
    seen = iter(lab.map(watch, [each for of in jobs.values() for each in of], Seen))
    runs = {of: [next(seen) for _ in each] for of, each in jobs.items()}
    rows, panels = [], {}
    for name in _LEARNERS:
        pairs = zip(_rows(runs[name, _RATE]), _rows(runs[name, RATE]), strict=True)
        for row, literal in pairs:
            said = "" if row.what.endswith(_ALIKE) else literal.ours
            rows.append(replace(row, what=f"{row.what}: {name}", literal=said))
        first = runs[name, _RATE][0].trees
        panels[name] = {
            f"tree {number}, a period of {tree.period_s:.2f} s": _path(tree)
            for number, tree in enumerate(first, 1)
        }
    drawn = picture("first component", "second component", panels)
    return Result(tuple(rows), setting.notes(lab, _NOTE, is_tuned=False), drawn)


def _path(tree: Rooted) -> list[tuple[float, float]]:
    """Return the mean places of a tree's gradients in consecutive parts of its updates."""
    parts = np.array_split(np.array(tree.places), min(_PARTS, len(tree.places)))
    return [(round(float(x), 4), round(float(y), 4)) for x, y in (p.mean(axis=0) for p in parts)]


def _rows(runs: Sequence[Seen]) -> list[Row]:
    """Return the rows of one model."""
    fast, slow = ([run.trees[at] for run in runs] for at in (0, -1))
    rows = [
        Row("seeds", "", f"{len(runs)}"),
        Row("trees", "3", spread([len(run.trees) for run in runs], ".3g")),
        Row(
            "share of variance of two components, %",
            "",
            spread([100 * run.share for run in runs], ".0f"),
        ),
    ]
    for name, trees in (("fastest", fast), ("slowest", slow)):
        rows += [
            Row(f"{name} tree, period in s", "", spread([t.period_s for t in trees], ".2f")),
            Row(f"{name} tree, updates", "", spread([len(t.places) for t in trees], ".3g")),
        ]
        for what, halves in (
            ("loss", [t.losses for t in trees]),
            ("apart", [t.apart for t in trees]),
        ):
            early, late = (spread(each, ".2f") for each in zip(*halves, strict=True))
            rows.append(Row(f"{name} tree, {what} in both halves", "", f"{early}, {late}"))
    pairs = [*zip(slow, fast, strict=True)]
    for what, paper, gains in (
        ("loss in the first half", _EARLY, [a.losses[0] - b.losses[0] for a, b in pairs]),
        ("loss in the second half", _PAPER, [a.losses[1] - b.losses[1] for a, b in pairs]),
        ("apart in the second half", _APART, [a.apart[1] - b.apart[1] for a, b in pairs]),
    ):
        said = told.more(gains, [0.0] * len(gains), form="+.2f")
        rows.append(Row(f"slowest beside fastest tree, {what}", paper, said))
    return rows


EXPERIMENTS = (Experiment("haaf/fig08", "where gradients of trees' roots lie", _make),)
