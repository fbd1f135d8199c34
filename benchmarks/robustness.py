"""What wrong rates and stalled links cost packed trees, dealt by share and adaptively. Simulated.

    python benchmarks/robustness.py

internet2-9, 61 M float32. Plans are made for rates that are wrong by up to so much either way, or
from another draw altogether (stale); or for the true ones, and one link stalls while a round goes
on. Medians and worst of several draws, as shares of the physical limit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import Plan, dumps, fapt, limit_s, packed
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

ELEMENTS = 61_000_000
DEALS = "by-share", "adaptive"
ERRORS = 0.0, 0.1, 0.2, 0.3, 0.4
STALLS_S = 0.0, 2.0, 5.0, 10.0
STALL_AT_S = 5.0


def wrong(overlay: Overlay, error: float, seed: int) -> Overlay:
    """Return the overlay with every rate off by up to ``error``, relative."""
    rng = np.random.default_rng(seed)
    return replace(
        overlay,
        links=tuple(
            replace(link, rate_bps=link.rate_bps * (1 + rng.uniform(-error, error)))
            for link in overlay.links
        ),
    )


def stale(overlay: Overlay, seed: int) -> Overlay:
    """Return the overlay with every rate drawn again."""
    rng = np.random.default_rng(seed)
    return replace(
        overlay,
        links=tuple(replace(link, rate_bps=rng.uniform(20e6, 155e6)) for link in overlay.links),
    )


def round_s(overlay: Overlay, plan: Plan, deal: str, fault: str = "") -> float:
    """Return how long the first round takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.toml")
        Path(folder, "plan.json").write_text(dumps(plan))
        path.write_text(
            'overlay = "internet2-9"\nstop.rounds = 1\nchunk_elements = 65536\n'
            f'route = {{kind = "file", path = "plan.json"}}\ndeal = {{kind = "{deal}"}}\n'
            f'task = {{kind = "exchange", elements = {ELEMENTS}}}\n{fault}\n'
        )
        scenario, _ = load(path)
        simulate(scenario, overlay, Path(folder, "run.db"))
        run = summarise(event for _, event in read_events(Path(folder, "run.db")))
    return run.round_s[0]


def stall(overlay: Overlay, index: int, for_s: float) -> str:
    """Return a fault as lines of a scenario; none for no time."""
    link = overlay.links[index]
    ends = [overlay.sites[link.source].name, overlay.sites[link.target].name]
    lines = f'[[fault]]\nkind = "cut"\nat_s = {STALL_AT_S}\nfor_s = {for_s}\nlink = {ends}'
    return lines if for_s else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=8)
    options = parser.parse_args()
    overlay = internet2_9()
    least_s = limit_s(overlay, 4 * ELEMENTS)
    results: list[dict[str, object]] = []

    def add(what: str, amount: float, plan_name: str, shares: dict[str, list[float]]) -> None:
        row = {deal: {"median": median(each), "worst": min(each)} for deal, each in shares.items()}
        results.append({"what": what, "amount": amount, "plan": plan_name, "share_of_limit": row})
        words = "; ".join(
            f"{deal} {median(s):.3f} (worst {min(s):.3f})" for deal, s in shares.items()
        )
        print(f"{plan_name}, {what} {amount:g}: {words}", flush=True)

    planners: dict[str, Callable[[Overlay], Plan]] = {
        "packed": packed,
        "fapt, 9 roots": lambda network: fapt(network, roots=9),
    }
    for name, planner in planners.items():
        guesses = {
            ("rates wrong by", error): [
                wrong(overlay, error, seed) for seed in range(options.draws if error else 1)
            ]
            for error in ERRORS
        }
        guesses["rates of another draw", 1.0] = [
            stale(overlay, seed) for seed in range(options.draws)
        ]
        for (what, amount), networks in guesses.items():
            shares = {
                deal: [least_s / round_s(overlay, planner(network), deal) for network in networks]
                for deal in DEALS
            }
            add(what, amount, name, shares)
        plan = planner(overlay)
        links = np.random.default_rng(0).choice(len(overlay.links), options.draws, replace=False)
        for for_s in STALLS_S:
            chosen = links.tolist() if for_s else [0]
            shares = {
                deal: [
                    least_s / round_s(overlay, plan, deal, stall(overlay, link, for_s))
                    for link in chosen
                ]
                for deal in DEALS
            }
            add("seconds that a link stalls", for_s, name, shares)
    common.write("robustness", seed=0, limit_s=least_s, draws=options.draws, results=results)


if __name__ == "__main__":
    main()
