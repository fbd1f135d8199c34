"""HAAF, Fig. 13: how similar the first gradients of sites are, with resampling and without.

The text has "the pairwise cosine similarity of initial gradients between nodes with and without
resampling". The caption has "similarity matrices of the learned aggregation topology under
different hyperparameter settings". This script follows the text. It runs no scenario: each worker
computes the gradient of its first batches on the common initial model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
from msgspec import structs

from anabranch_lab.run.scenario import Scenario
from anabranch_lab.run.simulate import one_thread
from anabranch_lab.run.work import make_work
from anabranch_lab.tasks.kinds import DataError
from anabranch_lab.tasks.sampling import Resampled
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import SCHEMES

Floats = npt.NDArray[np.float64]

_ALPHAS = (0.1, 1.0)
_BETAS = (0.0, 0.999)
_BATCHES = (1, 16)
_PAPER = "much more alike with resampling (drawn only)"


def _make(lab: Lab) -> Result:
    rows: list[Row] = []
    matrices = []
    for alpha in _ALPHAS:
        found: dict[tuple[float, int], list[float]] = {}
        try:
            for seed, beta in product(setting.seeds(lab, 5), _BETAS):
                for count, alike in _similarity(lab, alpha, beta, seed).items():
                    found.setdefault((beta, count), []).append(off_diagonal(alike))
                    matrices.append(
                        {
                            **{"alpha": alpha, "beta": beta, "seed": seed, "batches": count},
                            "similarity": [[round(x, 3) for x in row] for row in alike.tolist()],
                        }
                    )
        except DataError as error:
            rows.append(Row(f"alpha {alpha:g}", _PAPER, "not made: no data", str(error)))
            continue
        for count in _BATCHES:
            plain, resampled = (found[beta, count] for beta in _BETAS)
            gains = [ours - theirs for ours, theirs in zip(resampled, plain, strict=True)]
            batches = "first batch" if count == 1 else f"first {count} batches"
            rows += [
                Row(
                    f"alpha {alpha:g}, {batches}: mean cosine, beta {_BETAS[0]:g}",
                    "",
                    setting.spread(plain, ".2f"),
                ),
                Row(
                    f"alpha {alpha:g}, {batches}: mean cosine, beta {_BETAS[1]:g}",
                    _PAPER,
                    f"{setting.spread(resampled, '.2f')}; {setting.spread(gains, '+.2f')} more",
                ),
            ]
    what = (
        "Cosines between the gradients of two workers on the model that all begin with, the mean "
        "over all pairs; gradients of one batch, and the mean of so many. Speeds and links do not "
        "count."
    )
    notes = setting.notes(lab, (), what)
    return Result(tuple(rows), notes, {"matrices": matrices})


def _similarity(lab: Lab, alpha: float, beta: float, seed: int) -> dict[int, Floats]:
    """Return the cosines between workers' first gradients, shape (W, W), by number of batches."""
    trial = setting.trial(lab, SCHEMES["PS"], 0.0, seed, alpha, beta)
    names = tuple(site.name for site in trial.overlay.sites)
    workers = trial.scenario.workers(trial.overlay)
    scenario = structs.replace(trial.scenario, sampling=Resampled(beta=beta))
    with one_thread(scenario):
        by_worker = [
            _first_gradients(scenario, site, names, lab.data_dir, _BATCHES) for site in workers
        ]
    return {
        count: cosines(np.stack([each[i] for each in by_worker]))
        for i, count in enumerate(_BATCHES)
    }


def _first_gradients(
    scenario: Scenario,
    site: int,
    names: tuple[str, ...],
    data_dir: Path | None,
    batches: Sequence[int],
) -> list[Floats]:
    """Return the mean gradient of a site's first batches, for each number of batches."""
    assigned = make_work(scenario, site, names, data_dir, sizes_only=False)
    total = np.zeros(len(assigned.work.buffer))
    found = []
    for count in range(1, max(batches) + 1):
        assigned.work.local_step(assigned.samples)  # never applied, so the model does not change
        total += assigned.work.buffer
        if count in batches:
            found.append(total / count)
    return found


def cosines(gradients: Floats) -> Floats:
    """Return the cosine between each two of W gradients, shape (W, W).

    Args:
        gradients: of each worker, shape (W, D).

    >>> cosines(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])).round(2).tolist()
    [[1.0, 0.0, 0.71], [0.0, 1.0, 0.71], [0.71, 0.71, 1.0]]
    """
    unit = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def off_diagonal(alike: Floats) -> float:
    """Return the mean of a square matrix without its diagonal.

    >>> off_diagonal(np.array([[1.0, 0.25], [0.75, 1.0]]))
    0.5
    """
    return fmean(alike[~np.eye(len(alike), dtype=bool)].tolist())


EXPERIMENT = Experiment("haaf/fig13", "how alike sites' first gradients are", _make)
