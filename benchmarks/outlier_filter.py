"""How often FL-R²SP's filter bars honest clients whose data is unequal, and what it still finds.

    python benchmarks/outlier_filter.py

32 clients in 8 groups train a small network on digits, an epoch of their own samples between pull
and push, in virtual time: a federation as Flower's strategies have it. Each client draws how its
labels are mixed from a Dirichlet distribution, and how many samples it has, evenly in the
logarithm; an epoch takes as long as it has samples. Other runs show what each rule finds where a
quarter of the clients is not like the rest: most of their samples have one label (the paper's
outliers), they take each label for another, or they send the opposite of what they learnt.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

import common
from anabranch.flower._federation import Arrays, Federation, Outcome
from anabranch.merge import OutlierFilter
from anabranch.pace import FlR2sp
from anabranch_lab.tasks.kinds import load_task

CLIENTS, GROUPS, ROUNDS = 32, 8, 15
SAMPLES = 45  # of a client, on average
BATCH, LEARNING_RATE = 16, 0.1
ALPHAS = 0.1, 0.3, 1.0, 3.0, 10.0
SIZES = 1.0, 3.0, 10.0  # the largest client's samples over the smallest's
SPEED_JITTER = 0.1
RULES = {
    "beta 0.5, patience 3": OutlierFilter(),  # the paper's
    "beta 0.25, patience 3": OutlierFilter(beta=0.25),
    "beta 0, patience 3": OutlierFilter(beta=0.0),
    "beta 0, patience 5": OutlierFilter(beta=0.0, patience=5),
}
BAD = "one label", "wrong labels", "opposite updates"
BAD_SHARE = 0.25


@dataclass(frozen=True)
class Client:
    """What a client trains on: inputs of shape (n, 64), labels (n,)."""

    inputs: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Found:
    """Shares of the honest and of the other clients that are barred in the end, and accuracy."""

    honest: float
    bad: float
    accuracy: float


def dealt(alpha: float, ratio: float, bad: str, seed: int) -> tuple[list[Client], set[int]]:
    """Return the clients, and which of them are bad."""
    rng = np.random.default_rng(seed)
    task = load_task("digits")
    inputs, labels = task.train_inputs.flatten(1), task.train_labels
    pools = [rng.permutation(np.flatnonzero(labels.numpy() == k)) for k in range(10)]
    sizes = ratio ** rng.permutation(np.linspace(-0.5, 0.5, CLIENTS))
    sizes = np.maximum(2, np.rint(SAMPLES * sizes / sizes.mean())).astype(int)
    wrong = set(rng.choice(CLIENTS, round(BAD_SHARE * CLIENTS), replace=False).tolist())
    wrong = wrong if bad else set()
    clients = []
    for client, size in enumerate(sizes):
        mix = rng.dirichlet([0.1 if bad == "one label" and client in wrong else alpha] * 10)
        of_class = rng.multinomial(size, mix)
        chosen = np.concatenate(
            [rng.choice(pool, count) for pool, count in zip(pools, of_class, strict=True)]
        )
        own = labels[chosen]
        if bad == "wrong labels" and client in wrong:
            own = 9 - own
        clients.append(Client(inputs[chosen], own))
    return clients, wrong


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def arrays_of(model: nn.Module) -> Arrays:
    return {name: each.detach().numpy().copy() for name, each in model.state_dict().items()}


def load(model: nn.Module, arrays: Arrays) -> None:
    model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})


def epoch(model: nn.Module, client: Client, order: npt.NDArray[np.int64]) -> None:
    for start in range(0, len(order), BATCH):
        batch = torch.from_numpy(order[start : start + BATCH])
        loss = functional.cross_entropy(model(client.inputs[batch]), client.labels[batch])
        model.zero_grad()
        torch.autograd.backward(loss)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(LEARNING_RATE * parameter.grad)


def run(rule: OutlierFilter, alpha: float, ratio: float, bad: str, seed: int) -> Found:
    """Train; return who is barred in the end, and how good the model is."""
    clients, wrong = dealt(alpha, ratio, bad, seed)
    rng = np.random.default_rng((seed, 1))
    model = network()
    federation = Federation(FlR2sp(groups=GROUPS), rule, arrays_of(model))
    coming: list[tuple[float, int]] = []  # when a client has made its epoch
    pulled: dict[int, Arrays] = {}
    now_s = 0.0

    def follow(outcome: Outcome) -> None:
        for node in outcome.receivers:
            takes_s = len(clients[node].labels) * (1 + SPEED_JITTER * rng.uniform(-1, 1))
            pulled[node] = federation.arrays
            heapq.heappush(coming, (now_s + takes_s, node))

    for node in range(CLIENTS):
        follow(federation.joined(node, now_s))
    while federation.version < ROUNDS * GROUPS and (coming or federation.due_s < np.inf):
        next_s = coming[0][0] if coming else np.inf
        now_s = min(next_s, federation.due_s)
        if federation.due_s < next_s:
            follow(federation.look(now_s))
            continue
        _, node = heapq.heappop(coming)
        if node not in federation:  # barred meanwhile
            continue
        load(model, pulled[node])
        epoch(model, clients[node], rng.permutation(len(clients[node].labels)))
        examples, came = float(len(clients[node].labels)), arrays_of(model)
        if bad == "opposite updates" and node in wrong:
            before = pulled[node]
            came = {
                name: (2 * before[name] - each).astype(each.dtype)  # type: ignore[operator]
                for name, each in came.items()
            }
        follow(federation.returned(node, came, examples, now_s))
    load(model, federation.arrays)
    task = load_task("digits")
    with torch.inference_mode():
        right = model(task.held_out_inputs.flatten(1)).argmax(-1) == task.held_out_labels
    barred = federation.barred
    return Found(
        len(barred - wrong) / (CLIENTS - len(wrong)),
        len(barred & wrong) / len(wrong) if wrong else 0.0,
        float(right.double().mean()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = []
    kinds = [(a, r, "") for a, r in product(ALPHAS, SIZES)]
    kinds += [(10.0, 1.0, bad) for bad in BAD]
    for (alpha, ratio, bad), (name, rule) in product(kinds, RULES.items()):
        found = [run(rule, alpha, ratio, bad, seed) for seed in range(options.seeds)]
        cells.append(
            {
                "alpha": alpha,
                "sizes": ratio,
                "bad": bad,
                "rule": name,
                "honest_barred": fmean(each.honest for each in found),
                "honest_barred_most": max(each.honest for each in found),
                "runs_with_honest_barred": sum(each.honest > 0 for each in found),
                "bad_barred": fmean(each.bad for each in found) if bad else None,
                "accuracy": fmean(each.accuracy for each in found),
            }
        )
        print(cells[-1], flush=True)
    common.write(
        "outlier_filter",
        0,
        clients=CLIENTS,
        groups=GROUPS,
        rounds=ROUNDS,
        runs=options.seeds,
        cells=cells,
    )


if __name__ == "__main__":
    main()
