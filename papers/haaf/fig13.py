"""HAAF, Fig. 13: how similar the first gradients of sites are, with resampling and without.

The text has "the pairwise cosine similarity of initial gradients between nodes with and without
resampling". The caption has "similarity matrices of the learned aggregation topology under
different hyperparameter settings". This script follows the text. It runs no scenario: each worker
computes the gradient of its first batches on the common initial model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from anabranch_lab.run.scenario import Scenario
from anabranch_lab.run.simulate import one_thread
from anabranch_lab.run.work import make_work
from papers._compare import spread
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import RATE, Case

Floats = npt.NDArray[np.float64]

_ALPHAS = (0.1, 1.0)
_BETAS = (0.0, 0.999)
_BATCHES = (1, 16)
_SEEDS = 8
_PAPER = "much more alike"
_NOTE = (
    "Cosines between the gradients of two workers on the model that all begin with, the mean over "
    "all pairs; gradients of one batch, and the mean of so many. Speeds, links and learning rates "
    "do not count."
)


@dataclass(frozen=True, slots=True)
class First:
    """The workers whose first gradients are compared.

    Args:
        alpha, beta, seed: see :class:`papers.haaf._setting.Case`.
        quick: see :func:`papers.haaf._setting.scenario`.
    """

    alpha: float
    beta: float
    seed: int
    quick: bool


@dataclass(frozen=True, slots=True)
class Alike:
    """Cosines between workers' gradients, shape (W, W): of the first batch, and of several."""

    first: list[list[float]]
    several: list[list[float]]


def similarity(of: First, data_dir: Path | None) -> Alike:
    """Return the cosines between workers' first gradients."""
    case = Case(0.0, of.seed, alpha=of.alpha, beta=of.beta)
    scenario = setting.scenario(setting.ps(), case, RATE, quick=of.quick)
    overlay = setting.network(of.seed)
    names = tuple(site.name for site in overlay.sites)
    with one_thread(scenario):
        by_worker = [
            _first_gradients(scenario, site, names, data_dir) for site in scenario.workers(overlay)
        ]
    first, several = (
        cosines(np.stack([each[count] for each in by_worker])).round(3).tolist()
        for count in range(len(_BATCHES))
    )
    return Alike(first, several)


def _first_gradients(
    scenario: Scenario, site: int, names: tuple[str, ...], data_dir: Path | None
) -> list[Floats]:
    """Return the mean gradient of a site's first batches, for each number of batches."""
    assigned = make_work(scenario, site, names, data_dir, sizes_only=False)
    total = np.zeros(len(assigned.work.buffer))
    found = []
    for count in range(1, max(_BATCHES) + 1):
        assigned.work.local_step(assigned.samples)  # never applied, so the model does not change
        total += assigned.work.buffer
        if count in _BATCHES:
            found.append(total / count)
    return found


def _make(lab: Lab) -> Result:
    seeds = lab.seeds(_SEEDS)
    jobs = [First(*each, lab.quick) for each in product(_ALPHAS, _BETAS, seeds)]
    found = dict(zip(jobs, lab.map(similarity, jobs, Alike), strict=True))
    rows = []
    for alpha in _ALPHAS:
        plain, resampled = (
            [found[First(alpha, beta, seed, lab.quick)] for seed in seeds] for beta in _BETAS
        )
        rows += [Row(f"seeds: alpha {alpha:g}", "", f"{len(seeds)}")]
        for count in _BATCHES:
            before, after = (
                [off_diagonal(each.first if count == 1 else each.several) for each in which]
                for which in (plain, resampled)
            )
            batches = "first batch" if count == 1 else f"first {count} batches"
            for what, paper, said in (
                ("beta 0", "", spread(before, ".2f")),
                (f"beta {_BETAS[1]:g}", _PAPER, spread(after, ".2f")),
                ("gain", "", told.more(after, before, form="+.2f")),
            ):
                rows.append(Row(f"{batches}, {what}: alpha {alpha:g}", paper, said))
    return Result(tuple(rows), setting.notes(lab, _NOTE, is_tuned=False))


def cosines(gradients: Floats) -> Floats:
    """Return the cosine between each two of W gradients, shape (W, W).

    Args:
        gradients: of each worker, shape (W, D).

    >>> cosines(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])).round(2).tolist()
    [[1.0, 0.0, 0.71], [0.0, 1.0, 0.71], [0.71, 0.71, 1.0]]
    """
    unit = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def off_diagonal(alike: Sequence[Sequence[float]]) -> float:
    """Return the mean of a square matrix without its diagonal.

    >>> off_diagonal([[1.0, 0.25], [0.75, 1.0]])
    0.5
    """
    return fmean(np.array(alike)[~np.eye(len(alike), dtype=bool)].tolist())


EXPERIMENTS = (Experiment("haaf/fig13", "how alike sites' first gradients are", _make),)
