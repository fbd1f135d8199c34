"""Federated scenarios that are drawn: any pace, with clients that vanish, and faults.

    python -m tests.run.federated_worlds 300

What must hold whatever is drawn: the run ends, each update that was asked for is settled once at
most, who was neither lost nor barred makes all its updates, and a replay decides alike.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np

from anabranch.log import (
    Event,
    RunEnded,
    SiteLost,
    UpdateApplied,
    UpdateDiscarded,
    WorkerWent,
    fingerprint,
    read_events,
)
from anabranch.log.events import ClientBarred, ClientReadmitted
from anabranch_lab.run.replay import replay
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

from ..every import every
from .test_served import write_overlay

UPDATES = 5


def main() -> None:
    count, start = (*map(int, sys.argv[1:]), 0)[:2]
    ends = Counter[str]()
    for seed in range(start, start + count):
        faulthandler.dump_traceback_later(60, exit=True)  # virtual time may run away
        with tempfile.TemporaryDirectory() as folder:
            try:
                ends[live(seed, Path(folder))] += 1
            except BaseException:
                print(f"seed {seed}:\n{draw(seed, Path(folder))[0]}", flush=True)
                raise
    print(f"{count} runs: {dict(ends)}")


def draw(seed: int, folder: Path) -> tuple[str, int]:
    """Return a scenario whose overlay is in a folder, and how many workers it has."""
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(2, 8))
    names = [f"c{number:02}" for number in range(workers)]
    servers = ["server", "server-2"][: 1 + (rng.random() < 0.25)]
    edges = list(product(servers, names)) + [(a, b) for a, b in product(servers, servers) if a < b]
    write_overlay(folder, "hub", edges, 10 ** rng.uniform(5, 7))
    learns = rng.random() < 0.5
    gives_up = rng.random() < 0.7
    lines = [
        'overlay = "hub.toml"',
        f"seed = {seed}",
        "chunk_elements = 300",
        f"route = {{kind = {'fapt'!r}, roots = {servers}}}".replace("'", '"'),
        f"pace = {_pace(rng, gives_up, learns)}",
    ]
    averages = rng.random() < 0.8
    if averages:
        lines.append(f'period = {{kind = "every", steps = {rng.integers(1, 4)}}}')
    mixes = "updates"
    if rng.random() < 0.5:
        mixes = str(rng.choice(["models", "cache"]))
    if not learns:  # an exchange has no model that is trained
        mixes = "updates"
    only = f"{servers}".replace("'", '"')
    has_clients = rng.random() < 0.5 and mixes != "cache"
    has_clients &= not any(f'grouping = "{each}"' in lines[4] for each in ("delay", "load"))
    lines.append(f'serve = {{only = {only}, mixes = "{mixes}"}}')
    merge = _merge(rng, learns, mixes)
    if any(f'kind = "{one}"' in lines[4] for one in ("asp", "ssp", "r2sp")):
        # There is nothing to hold the update of a step to.
        merge = 'merge = {kind = "staleness", a = 0.5}' if learns else ""
    lines += [merge] if merge else []
    can_vanish = gives_up and ("fl-r2sp" in lines[4] or "fedavg" in lines[4])
    if has_clients:
        lines.append(_clients(rng, workers, can_vanish))
    lines.append(_task(rng, learns))
    stop = f"stop = {{rounds = {UPDATES}"
    if rng.random() < 0.2:
        stop += f", after_s = {rng.uniform(0.3, 5):.2f}"
    elif learns and rng.random() < 0.2:
        stop += ", at_target = true"
    lines.append(stop + "}")
    compute = (
        f"compute = {{samples_per_s = {rng.integers(20, 200)}, gini = {rng.uniform(0, 0.5):.2f}"
    )
    if rng.random() < 0.5:
        compute += ', added_delay = {kind = "lognormal", mu = -2, sigma = 1.5}'
    lines.append(compute + "}")
    faults = [_fault(rng, str(rng.choice(names)), servers) for _ in range(rng.integers(0, 4))]
    kills = [each for each in faults if "kill" in each]
    faults = [each for each in faults if each not in kills[1:]]
    lines.append(f"fault = [{', '.join(faults)}]")
    return "\n".join(lines) + "\n", workers


def _pace(rng: np.random.Generator, gives_up: bool, learns: bool) -> str:
    more = ""
    if gives_up:
        more = f", give_up_after = {rng.integers(1, 3)}, deadline_s = {rng.uniform(0.2, 9):.2f}"
    share = f"{rng.uniform(0.1, 1):.2f}"
    mixed = f", share = {share}" if learns else ""
    return [
        f'{{kind = "fl-r2sp", groups = {rng.integers(1, 6)}, fraction = {share}, '
        f"relaxation = {rng.uniform():.2f}, smoothing = {rng.uniform(0.05, 1):.2f}, "
        f'grouping = "{rng.choice(["index", "delay", "load"])}", '
        f'regroup_every = {rng.integers(1, 4)}, order = "{rng.choice(["fixed", "ready"])}", '
        f'collects = "{rng.choice(["fraction", "turn"])}"{more}}}',
        f'{{kind = "fedavg", sample = {rng.uniform(0.1, 1):.2f}, fraction = {share}{more}}}',
        f'{{kind = "fedbuff", size = {rng.integers(1, 9)}{mixed}}}',
        f'{{kind = "asp"{mixed}}}',
        f'{{kind = "safa", fraction = {share}, lag_tolerance = {rng.integers(0, 4)}, '
        f"deadline_s = {rng.uniform(0.2, 9):.2f}}}",
        f'{{kind = "r2sp", relaxation = {rng.uniform():.2f}}}',
        f'{{kind = "ssp", lead = {rng.integers(0, 4)}}}',
    ][int(rng.choice(7, p=[0.34, 0.26, 0.1, 0.06, 0.12, 0.06, 0.06]))]


def _merge(rng: np.random.Generator, learns: bool, mixes: str) -> str:
    robust = ['{kind = "median"}', '{kind = "trimmed-mean"}', '{kind = "krum", keep = 2}']
    rules = [] if mixes == "cache" else robust
    if learns:
        outliers = (
            f'{{kind = "outlier-filter", beta = {rng.uniform(-1, 1):.2f}, '
            f"patience = {rng.integers(1, 3)}, most = {rng.uniform():.2f}"
            + (f", ends_after = {rng.integers(1, 6)}}}" if rng.random() < 0.7 else "}")
        )
        rules += [
            *([outliers] * 4),
            '{kind = "staleness", a = 0.5}',
            f'{{kind = "product", of = [{{kind = "data-size"}}, {outliers}, '
            '{kind = "staleness"}, {kind = "fairness"}]}',
        ]
    return f"merge = {rng.choice(rules)}" if rules and rng.random() < 0.7 else ""


def _clients(rng: np.random.Generator, workers: int, can_vanish: bool) -> str:
    clients = f"clients = {{registered = {workers + rng.integers(1, 12)}"
    if rng.random() < 0.6:
        clients += f", away = {{awake_s = {rng.uniform(1, 9):.1f}, "
        clients += f"asleep_s = {rng.uniform(1, 9):.1f}}}"
    if can_vanish and rng.random() < 0.7:
        clients += f", vanish = {rng.uniform(0, 0.5):.2f}"
    return clients + "}"


def _task(rng: np.random.Generator, learns: bool) -> str:
    if not learns:
        return f'task = {{kind = "exchange", elements = {rng.integers(1, 2000)}, batch_size = 8}}'
    task = (
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.2, '
        f"batch_size = 8, target_accuracy = 0.6, evaluate_every = {rng.integers(1, 4)}"
    )
    if rng.random() < 0.4:
        kinds = [
            '{kind = "label-flip", share = 0.3}',
            '{kind = "noise", share = 0.3, factor = 20}',
            '{kind = "scaled", share = 0.3, factor = -10}',
        ]
        task += f", adversaries = {rng.choice(kinds)}"
    if rng.random() < 0.5:
        task += ', partition = {kind = "dirichlet", alpha = 1.0}'
    return task + "}"


def _fault(rng: np.random.Generator, site: str, servers: list[str]) -> str:
    at_s, for_s = f"at_s = {rng.uniform(0, 3):.2f}", f"for_s = {rng.uniform(0.1, 4):.2f}"
    link = f'["{site}", "{rng.choice(servers)}"]'
    return [
        f'{{kind = "kill", site = "{site}", {at_s}}}',
        f'{{kind = "kill", site = "{site}", {at_s}, {for_s}}}',
        f'{{kind = "pause", site = "{site}", {at_s}, {for_s}}}',
        f'{{kind = "pause", site = "{servers[0]}", {at_s}, {for_s}}}',
        f'{{kind = "cut", link = {link}, {at_s}, {for_s}}}',
        f'{{kind = "cut", site = "{servers[-1]}", {at_s}, {for_s}}}',
        f'{{kind = "disconnect", site = "{site}", {at_s}, {for_s}}}',
        f'{{kind = "slow", site = "{site}", factor = {rng.uniform(1.1, 20):.1f}, {at_s}}}',
        f'{{kind = "slow", link = {link}, factor = {rng.uniform(1.1, 20):.1f}, {at_s}}}',
        f'{{kind = "sleep", site = "{site}", awake_s = 1, asleep_s = 1, until_s = 20}}',
        '{kind = "outages", all = true, up_s = 2, down_s = 0.5, until_s = 20}',
    ][int(rng.integers(11))]


def live(seed: int, folder: Path) -> str:
    """Simulate a drawn scenario, hold it to what it promises; return how it ended."""
    text, workers = draw(seed, folder)
    path, log = folder / "scenario.toml", folder / "run.db"
    path.write_text(text)
    simulate(*load(path), log)
    happened = [event for _, event in read_events(log)]
    replay(read_events(log))
    check(happened, text, workers)
    if seed % 5 == 0:
        again = folder / "again.db"
        simulate(*load(path), again)
        assert fingerprint(again) == fingerprint(log)
    (ended,) = [event for event in happened if isinstance(event, RunEnded)]
    return ended.reason


def check_barred(happened: list[Event]) -> None:
    """The scheduler lets no client go on while it is barred, nor a worker for itself."""
    barred: set[int] = set()
    for event in happened:
        if isinstance(event, ClientBarred):
            assert event.client not in barred
            barred.add(event.client)
        elif isinstance(event, ClientReadmitted):
            barred.remove(event.client)
        elif isinstance(event, WorkerWent):
            assert (event.site if event.client is None else event.client) not in barred


def check(happened: list[Event], text: str, workers: int) -> None:
    went = [(e.site, e.update) for e in happened if isinstance(e, WorkerWent)]
    settled = [
        (e.site, e.update) for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)
    ]
    assert len(set(went)) == len(went)
    assert len(set(settled)) == len(settled)
    assert set(settled) <= set(went)
    check_barred(happened)
    assert len(happened) < 4000 + 2000 * workers
    assert isinstance(happened[-1], RunEnded)
    lost = {event.site for event in happened if isinstance(event, SiteLost)}
    barred = {event.client for event in happened if isinstance(event, ClientBarred)}
    if "after_s" in text or "at_target" in text:
        return
    if "clients" in text:
        barred.clear()
    made = Counter(site for site, _ in went)
    computing = set(made) - lost - barred
    assert every(made[site] == UPDATES for site in computing) or happened[-1].reason is not None
    assert {each for each in went if each[0] in computing} <= set(settled)


if __name__ == "__main__":
    main()
