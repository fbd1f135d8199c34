"""Training, which NetStorm's figures leave out: accuracy against time.

A net of two convolutions and three linear layers learns Fashion-MNIST with Adam at the nine sites.
It has a tenth of AlexNet's parameters, and its large layers have about AlexNet's proportions. The
paper's systems send it tensor by tensor. Rates are the paper's, so rounds take a tenth of the time
of AlexNet's. Chunks, the pauses between looks at plans, and the time between draws of a changing
network are a tenth too. Simulated, a batch takes a hundredth of pro's rounds to compute, about the
paper's part. Emulated, nine processes share the machine's cores, and a batch takes its real time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from anabranch.fleet import Compute
from anabranch.overlay import Overlay
from anabranch.scheduler.deal import ByShare
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Train
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import middle, picture
from papers._result import Result, Row
from papers._trial import Outcome, Trial, chosen, seconds
from papers.netstorm import _setting as setting
from papers.netstorm._setting import MLNET, MXNET, PACKED, PRO, TSENGINE, System

HIDDEN = (1300, 1450)
ELEMENTS = 6_031_156
_BY = 10  # AlexNet's parameters over the model's
_BATCH = 8  # of each of nine sites
_COMPUTE_S = 0.03
_RATE = 1e-3
_TARGET = 0.75
_LITERAL = (MXNET, MLNET, TSENGINE, PRO)
_SYSTEMS = (*_LITERAL, PACKED)


def window_s(lab: Lab) -> float:
    """Return how long each system trains, seconds."""
    return (2 if lab.quick else 6) * setting.REDRAW_S / _BY


def draws(lab: Lab) -> tuple[int, ...]:
    """Return the numbers of the drawn networks; each has another order of samples too."""
    return tuple(range(1 if lab.quick or lab.emulate else 3))


def trial(lab: Lab, system: System, overlay: Overlay, network: str, draw: int) -> Trial:
    """Return a run of a system that trains until its time is over."""
    system = setting.at_scale(system, _BY)
    scenario = Scenario(
        overlay="",
        route=system.route,
        task=Train(
            data="fashion-mnist",
            model="cnn",
            hidden=HIDDEN,
            optimiser="adam",
            learning_rate=_RATE,
            batch_size=_BATCH,
            evaluate_every=2,
            evaluate_samples=500,
        ),
        stop=Stop(rounds=100_000, after_s=window_s(lab)),
        compute=None if lab.emulate else Compute(samples_per_s=_BATCH / _COMPUTE_S),
        deal=ByShare(cut="tensors") if system.cuts_tensors else None,
        awareness=system.awareness,
        auxiliary=system.auxiliary,
        chunk_elements=system.chunk_elements,
        seed=lab.seed + draw,
        sample_every_s=60.0,
    )
    return Trial({"network": network, "draw": draw, "system": system.name}, scenario, overlay)


def accuracy_at(run: Outcome, at_s: float) -> float | None:
    """Return the latest accuracy at a time; None before the first evaluation."""
    seen = [accuracy for when_s, accuracy in run.curve if when_s <= at_s]
    return seen[-1] if seen else None


def reached_s(run: Outcome) -> float | None:
    """Return when an evaluation first reached the target, seconds; None: never."""
    return next((at_s for at_s, accuracy in run.curve if accuracy >= _TARGET), None)


def most_apart(runs: Sequence[Outcome]) -> float:
    """Return the largest difference of accuracies after equally many rounds.

    The last evaluation of a run is left out: it is after its last round, whichever that is.

    Args:
        runs: of equal models, which evaluate after the same rounds.
    """
    curves = [each.curve[:-1] for each in runs]
    apart = []
    for number in range(max(map(len, curves))):
        seen = [curve[number][1] for curve in curves if number < len(curve)]
        apart.append(max(seen) - min(seen))
    return max(apart, default=0.0)


def _networks(lab: Lab) -> dict[str, tuple[Overlay, ...]]:
    redraw_s = setting.REDRAW_S / _BY
    numbers = draws(lab)
    static = (setting.reference(),) if lab.emulate else setting.drawn(len(numbers), lab.seed)
    changing = tuple(setting.dynamic(lab.seed + draw, redraw_s) for draw in numbers)
    return {"static": static, "dynamic": changing}


def _make(lab: Lab) -> Result:
    networks = _networks(lab)
    found = lab.measure(
        [
            trial(lab, system, overlay, network, draw)
            for network, overlays in networks.items()
            for draw, overlay in enumerate(overlays)
            for system in _SYSTEMS
        ]
    )
    rows = [
        _row(lab, chosen(found, network=network, system=system.name), network, system)
        for network in networks
        for system in _SYSTEMS
    ]
    apart = [most_apart(chosen(found, draw=draw)) for draw in draws(lab)]
    rows.append(
        Row(
            "accuracy after equally many rounds: the most that two systems are apart",
            "unaffected (IX-A)",
            f"{100 * max(apart):.1f} points",
            "all systems add up the same gradients, in other orders",
            seeds=_seeds(lab),
        )
    )
    note = (
        f"Trained: {ELEMENTS:,} parameters on Fashion-MNIST, Adam at {_RATE:g}, {_BATCH} samples "
        f"at each of nine sites, for {window_s(lab):g} s; held-out accuracy of 500 samples, after "
        f"each second round. Dynamic: new rates every {setting.REDRAW_S / _BY:g} s. Accuracies are "
        "the median draw's, then the least and the most; curves are medians."
    )
    panels = {
        network: {
            system.name: middle([each.curve for each in runs])
            for system in _SYSTEMS
            for runs in (chosen(found, network=network, system=system.name),)
        }
        for network in networks
    }
    return Result(tuple(rows), (note,), picture("seconds", "accuracy", panels))


def _seeds(lab: Lab) -> str:
    count = len(draws(lab))
    return "1 draw" if count == 1 else f"{count} draws"


def _row(lab: Lab, runs: list[Outcome], network: str, system: System) -> Row:
    looks_s = [window_s(lab) * part / 3 for part in (1, 2, 3)]
    told = "; ".join(
        f"{_percent([accuracy_at(each, at_s) for each in runs])} after {at_s:g} s"
        for at_s in looks_s
    )
    times_s = [at_s for each in runs if (at_s := reached_s(each)) is not None]
    target = f"{_TARGET:.0%} in {len(times_s)} of {len(runs)}"
    if times_s:
        target += f", after {median(times_s):.0f} s"
    value = f"{told}; {target}; {seconds(runs):.1f} s a round"
    ours, literal = (value, "") if system is PACKED else ("", value)
    return Row(f"{network}: {system.name}", "", ours, literal=literal, seeds=_seeds(lab))


def _percent(accuracies: Sequence[float | None]) -> str:
    known = sorted(100 * each for each in accuracies if each is not None)
    if not known:
        return "-"
    spread = f" ({known[0]:.1f} to {known[-1]:.1f})" if len(known) > 1 else ""
    return f"{median(known):.1f} %{spread}"


EXPERIMENTS = (Experiment("netstorm/training", "accuracy against time", _make, emulable=True),)
