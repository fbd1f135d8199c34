"""Training, which NetStorm's figures leave out: accuracy against time.

A convolutional net with a tenth of AlexNet's parameters learns Fashion-MNIST with Adam at the nine
sites. Rates are the paper's, so rounds take a tenth of the time of AlexNet's. Chunks, the pauses
between looks at plans, and the time between draws of a changing network are a tenth too. Simulated,
a batch takes a hundredth of pro's rounds to compute, about the paper's part. Emulated, nine
processes share the machine's cores, and a batch takes its real time.
"""

from __future__ import annotations

from anabranch.fleet import Compute
from anabranch.overlay import Overlay
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Train
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._picture import picture
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import (
    MLNET,
    MXNET,
    PACKED,
    PRO,
    TSENGINE,
    System,
    times,
)

HIDDEN = 1900
ELEMENTS = 6_031_406
_BY = 10  # AlexNet's parameters over the model's
_BATCH = 8  # of each of nine sites
_COMPUTE_S = 0.03
_RATE = 1e-3
_TARGET = 0.75
_SYSTEMS = (MXNET, MLNET, TSENGINE, PRO, PACKED)


def window_s(lab: Lab) -> float:
    """Return how long each system trains, seconds."""
    return (2 if lab.quick else 6) * setting.REDRAW_S / _BY


def trial(lab: Lab, system: System, overlay: Overlay, network: str) -> Trial:
    """Return a run of a system that trains until its time is over."""
    system = setting.at_scale(system, _BY)
    scenario = Scenario(
        overlay="",
        route=system.route,
        task=Train(
            data="fashion-mnist",
            model="cnn",
            hidden=(HIDDEN,),
            optimiser="adam",
            learning_rate=_RATE,
            batch_size=_BATCH,
            evaluate_every=2,
            evaluate_samples=500,
        ),
        stop=Stop(rounds=100_000, after_s=window_s(lab)),
        compute=None if lab.emulate else Compute(samples_per_s=_BATCH / _COMPUTE_S),
        awareness=system.awareness,
        auxiliary=system.auxiliary,
        chunk_elements=system.chunk_elements,
        seed=lab.seed,
        sample_every_s=60.0,
    )
    return Trial({"network": network, "system": system.name}, scenario, overlay)


def accuracy_at(run: Outcome, at_s: float) -> float | None:
    """Return the latest accuracy at a time; None before the first evaluation."""
    seen = [accuracy for when_s, accuracy in run.curve if when_s <= at_s]
    return seen[-1] if seen else None


def reached_s(run: Outcome) -> float | None:
    """Return when an evaluation first reached the target, seconds; None: never."""
    return next((at_s for at_s, accuracy in run.curve if accuracy >= _TARGET), None)


def _make(lab: Lab) -> Result:
    redraw_s = setting.REDRAW_S / _BY
    networks = {
        "static": setting.reference(),
        "dynamic": setting.dynamic(lab.seed, redraw_s),
    }
    found = lab.measure(
        [
            trial(lab, system, overlay, network)
            for network, overlay in networks.items()
            for system in _SYSTEMS
        ]
    )
    rows = [
        _row(run, setting.chosen(found, network=network, system=MXNET.name)[0], window_s(lab))
        for network in networks
        for run in setting.chosen(found, network=network)
    ]
    note = (
        f"Trained: {ELEMENTS:,} parameters on Fashion-MNIST, Adam at {_RATE:g}, {_BATCH} samples "
        f"at each of nine sites, for {window_s(lab):g} s; held-out accuracy of 500 samples, after "
        f"each second round. Dynamic: one draw, new rates every {redraw_s:g} s. All systems make "
        "the same updates, so that what one seed tells apart is how many they make in a time."
    )
    panels = {
        network: {
            str(run.labels["system"]): run.curve for run in setting.chosen(found, network=network)
        }
        for network in networks
    }
    return Result(tuple(rows), (note,), picture("seconds", "accuracy", panels))


def _row(run: Outcome, star: Outcome, ends_s: float) -> Row:
    looks_s = [ends_s * part / 3 for part in (1, 2, 3)]
    told = [_percent(accuracy_at(run, at_s)) for at_s in looks_s]
    at = ", ".join(f"{at_s:g}" for at_s in looks_s)
    ours = f"{' %, '.join(told)} % after {at} s; {run.round_s:.1f} s a round"
    mine_s, stars_s = reached_s(run), reached_s(star)
    if mine_s is not None:
        ours += f"; {_TARGET:.0%} after {mine_s:.0f} s"
        if run is not star and stars_s is not None:
            ours += f", {times(stars_s / mine_s)} as soon"
    else:
        ours += f"; never {_TARGET:.0%}"
    return Row(f"{run.labels['network']}: {run.labels['system']}", "", ours)


def _percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.1f}"


EXPERIMENT = Experiment("netstorm/training", "accuracy against time", _make, emulable=True)
