"""How much averages in few bits change what DiLoCo learns: final losses and bytes, in virtual time.

    python benchmarks/few_bits_training.py --data-dir FOLDER   # 8 seeds of 5 formats: ten minutes
    python benchmarks/few_bits_training.py --seeds 1 --rounds 10 --dry

The nine sites of ``internet2-9`` train a hidden layer of 128 on Fashion-MNIST (101,770 parameters).
They average a fifth of the model every five steps, so all of it every 25, by DiLoCo's outer
optimiser. The learning rate is the best of five for float32, and the same for all formats. The
loss is that of the final model on the test samples. Bytes are those of a buffer that travels, a
step; DDP's is a float32 gradient in each step. The interval is that of the mean of the ratios to
float32, seed by seed.
"""

from __future__ import annotations

import argparse
import tempfile
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional

import common
from anabranch.overlay import internet2_9
from anabranch.train.averaging import FORMATS
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.kinds import Task, load_task
from anabranch_lab.tasks.models import build_model

WAYS = ["float32", "int8", "int4", "int2", "top2"]
RATES = 0.0125, 0.025, 0.05, 0.1, 0.2
EVERY, FRAGMENTS = 25, 5
DATA = "fashion-mnist"
T_7 = 2.365  # the 97.5th percentile of Student's t with seven degrees of freedom
SCENARIO = """
overlay = "internet2-9"
route = {{ kind = "packed" }}
period = {{ kind = "every", steps = {every} }}
seed = {seed}
[average]
outer = {{ learning_rate = 0.7, momentum = 0.9, nesterov = true }}
fragments = {fragments}
wire = "{wire}"
[stop]
rounds = {rounds}
[task]
kind = "train"
data = "{data}"
model = "mlp"
learning_rate = {rate}
batch_size = 32
evaluate_every = 100000
[compute]
samples_per_s = 2000
"""


def final_loss(wire: str, rate: float, seed: int, options: argparse.Namespace, task: Task) -> float:
    """Return the loss of the final model on the test samples."""
    text = SCENARIO.format(
        every=EVERY,
        fragments=FRAGMENTS,
        seed=seed,
        wire=wire,
        rounds=FRAGMENTS * options.rounds,
        data=DATA,
        rate=rate,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        simulate(loads(text), internet2_9(), path, options.data_dir)
        weights = load_file(weights_of(path))
    model = build_model("mlp", task.shape, task.classes, seed)
    model.load_state_dict(weights)
    with torch.no_grad():
        return float(functional.cross_entropy(model(task.held_out_inputs), task.held_out_labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where the data set's files are")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40, help="averages of the whole model")
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = load_task(DATA, options.data_dir, download=False)
    tuned = {rate: final_loss("float32", rate, 100, options, task) for rate in RATES}
    rate = min(tuned, key=lambda each: tuned[each])
    print(f"float32 by learning rate: {tuned}", flush=True)
    losses: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way in WAYS:
            losses[way].append(final_loss(way, rate, seed, options, task))
        print(seed, {way: round(each[-1], 4) for way, each in losses.items()}, flush=True)
    rows = {way: row(way, losses) for way in WAYS}
    for way, each in rows.items():
        print(way, each, flush=True)
    if not options.dry:
        common.write(
            "few_bits_training",
            seed=0,
            seeds=options.seeds,
            rounds=options.rounds,
            learning_rate=rate,
            tuned={str(each): loss for each, loss in tuned.items()},
            ways=rows,
        )


def row(way: str, losses: dict[str, list[float]]) -> dict[str, Any]:
    """Return the figures of a format."""
    parameters = 28 * 28 * 128 + 128 + 128 * 10 + 10
    fragment = parameters // FRAGMENTS
    wire = FORMATS[way]
    bytes_a_step = FRAGMENTS * wire.bytes_of(wire.padded(fragment)) / EVERY
    logs = [log(one / other) for one, other in zip(losses[way], losses["float32"], strict=True)]
    mean = fmean(logs)
    half = T_7 * stdev(logs) / sqrt(len(logs)) if len(logs) == 8 else 0.0
    return {
        "loss": common.spread(losses[way]),
        "losses": losses[way],
        "ratio": [exp(mean - half), exp(mean), exp(mean + half)],
        "bytes_a_step": bytes_a_step,
        "of_ddp": bytes_a_step / (4 * parameters),
    }


if __name__ == "__main__":
    main()
