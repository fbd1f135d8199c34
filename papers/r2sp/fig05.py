"""R²SP, Fig. 5: the time of an iteration over the batch is linear.

The paper's curves are of two models on GPU instances, drawn only. With ``--emulate`` this machine's
processor trains ours with batches of several sizes, and a line is fitted. Without, the batches that
equal times ask for follow from the speeds of Table III.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np

from anabranch_lab.tasks.profiles import RESNET_32_INSTANCES
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row

_BATCH = 1000  # of the paper's example
_TEXT = {"p2.xlarge": "around 1500", "g3.4xlarge": "around 2200"}
_BATCHES = (8, 16, 32, 64, 128)
_STEPS = 5
_MODELS = {"ResNet32": "resnet-32", "CNN-6, for Inception-v3": "cnn-6"}


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of processor time of a step, the median of several, for each batch.

    Args:
        steps_s: in order of the batches.
    """

    steps_s: tuple[float, ...]


def time(job: tuple[str, tuple[int, ...], int], data_dir: Path | None = None) -> Timed:
    """Time steps of a model on one core.

    Args:
        job: the model's name, the batches, and how many steps of each.
        data_dir: not used.
    """
    import torch

    from anabranch_lab.tasks.models import build_model

    torch.set_num_threads(1)
    name, batches, steps = job
    model = build_model(name, (3, 32, 32), 10, 0)
    found = []
    for batch in batches:
        pictures, labels = torch.ones(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long)
        taken_s = []
        for _ in range(steps + 1):
            began_s = process_time()
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(pictures), labels).backward()
            taken_s.append(process_time() - began_s)
        found.append(float(np.median(taken_s[1:])))
    return Timed(tuple(round(each, 5) for each in found))


def _make(lab: Lab) -> Result:
    return _measured(lab) if lab.emulate else _of_table_3()


def _of_table_3() -> Result:
    """Return the batches that make iterations of the paper's three instances equally long."""
    slowest = RESNET_32_INSTANCES[0]
    rows, lines = [], {}
    for instance in RESNET_32_INSTANCES:
        sizes = range(200, 2401, 200)
        lines[instance.name] = [(float(size), instance.step_s(size)) for size in sizes]
        if instance is slowest:
            continue
        by_speed = _BATCH * instance.samples_per_s / slowest.samples_per_s
        left_s = slowest.step_s(_BATCH) - instance.fixed_s
        rows.append(
            Row(
                f"ResNet32, {instance.name}: the batch that takes as long as 1000 on a g2.2xlarge",
                _TEXT[instance.name],
                f"{left_s * instance.samples_per_s:.0f}",
                "literal: by Table III's speeds; ours: with the fixed parts of steps that its "
                "waits imply",
                literal=f"{by_speed:.0f}",
                seeds="exact",
            )
        )
    rows.append(
        Row(
            "Inception-v3 on ImageNet, three instances",
            "linear (drawn only)",
            "not made",
            "no GPU instance and no ImageNet here; --emulate times our models on a processor",
        )
    )
    drawn = picture("samples", "seconds", {"ResNet32, by Table III": lines})
    return Result(tuple(rows), ("An iteration is linear in its batch here by its model.",), drawn)


def _measured(lab: Lab) -> Result:
    batches = _BATCHES[:3] if lab.quick else _BATCHES
    steps = 2 if lab.quick else _STEPS
    jobs = [(name, batches, steps) for name in _MODELS.values()]
    rows, panels = [], {}
    for told, timed in zip(_MODELS, lab.map(time, jobs, Timed), strict=True):
        slope_s, fixed_s = np.polyfit(batches, timed.steps_s, 1)
        line = np.polyval((slope_s, fixed_s), batches)
        rest = np.sum((np.array(timed.steps_s) - line) ** 2)
        linear = 1 - rest / np.sum((np.array(timed.steps_s) - np.mean(timed.steps_s)) ** 2)
        rows.append(
            Row(
                f"{told}: a step over its batch, on one core",
                "linear (drawn only)",
                f"{1e3 * fixed_s:.1f} ms and {1e3 * slope_s:.2f} ms a sample; R² {linear:.4f}",
                "batches of 8 to 128 on a processor, not of up to thousands on GPUs",
                seeds=f"medians of {steps}",
            )
        )
        panels[told] = {
            "measured": list(zip(map(float, batches), timed.steps_s, strict=True)),
            "a line": [(float(b), float(s)) for b, s in zip(batches, line, strict=True)],
        }
    note = "Processor time of forward and backward passes of one thread, on a shared machine."
    return Result(tuple(rows), (note,), picture("samples", "seconds", panels))


EXPERIMENTS = (Experiment("r2sp/fig05", "an iteration over its batch", _make, emulable=True),)
