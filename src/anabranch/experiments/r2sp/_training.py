"""R²SP's claims about convergence, at a size that two cores can train.

The paper trains image models on CIFAR-10 and ImageNet with GPUs. Here a perceptron with one hidden
layer learns 8 x 8 digits, which come with scikit-learn, over a network that is as many times slower
as the model is smaller than the paper's: so computing, pushing and pulling take the times of the
paper's model, and gradients, staleness and convergence are real, but another problem's.

Which learning rate suits depends on the pace: stale updates bear less. So each pace is given the
one of several with which it is quickest, beside the comparison at one rate for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from anabranch.experiments._lab import Lab, Label, Outcome, Trial
from anabranch.experiments._result import Row
from anabranch.experiments.r2sp import _setting as setting
from anabranch.experiments.r2sp._setting import EQUAL
from anabranch.fleet import Compute
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace
from anabranch.plan import Fapt
from anabranch.run.scenario import Scenario, Serve, Stop
from anabranch.run.scenario.tasks import Train

HIDDEN = 256
ELEMENTS = 64 * HIDDEN + HIDDEN + 10 * HIDDEN + 10
BATCH = 1
TARGET = 0.97
_MOST_ITERATIONS = 400
_CHUNKS = 8  # more make a simulation slower and iterations hardly longer
NOTE = (
    f"Trained: 8 x 8 digits, a perceptron with {HIDDEN} hidden units ({ELEMENTS:,} parameters), "
    f"batches of one sample where not said otherwise, to {TARGET:.0%} of held-out samples, over a "
    "network as many times slower as it is smaller than the paper's model."
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried.

    Args:
        rates: learning rates; the first is the one for all.
        seeds: of data, model and jitter.
    """

    rates: tuple[float, ...]
    seeds: tuple[int, ...]


def effort(lab: Lab) -> Effort:
    """Return how much is tried in full, or quickly."""
    return Effort((0.4,), (0,)) if lab.quick else Effort((0.1, 0.2, 0.4), (0, 1))


@dataclass(frozen=True, slots=True)
class Converged:
    """What a pace came to with the learning rate that suits it.

    Args:
        rate: that learning rate.
        seconds: to the target, mean over seeds.
        iterations: of each worker until then, mean over seeds.
    """

    rate: float
    seconds: float
    iterations: float


def cluster(elements: int, port_bps: float, workers: int, servers: int) -> Overlay:
    """Return a cluster on which the small model takes as long to move as one of ``elements``."""
    return setting.cluster(port_bps * ELEMENTS / elements, workers, servers)


def trial(
    under: AnyPace,
    overlay: Overlay,
    compute: Compute,
    rate: float,
    seed: int,
    load: AnyLoad = EQUAL,
    ahead: bool = False,
    batch: int = BATCH,
    **labels: Label,
) -> Trial:
    """Return a run that trains to the target.

    Args:
        under: its pace.
        overlay: of :func:`cluster`.
        compute: how long batches take.
        rate: the learning rate.
        seed: of data, model and jitter.
        load: equal batches or tuned ones.
        ahead: whether workers compute while their last update is on its way.
        batch: samples of a batch.
        labels: what else sets it apart.
    """
    servers = tuple(site.name for site in overlay.sites if site.name.startswith("server-"))
    scenario = Scenario(
        overlay=overlay.name,
        route=Fapt(roots=servers),
        pace=under,
        serve=Serve(only=servers, ahead=ahead),
        load=load,
        stop=Stop(rounds=_MOST_ITERATIONS, at_target=True),
        compute=compute,
        task=Train(
            data="digits",
            model="mlp",
            hidden=(HIDDEN,),
            learning_rate=rate,
            batch_size=batch,
            evaluate_every=1,
            target_accuracy=TARGET,
        ),
        chunk_elements=-(-ELEMENTS // _CHUNKS),
        sample_every_s=1e6,
        seed=seed,
    )
    return Trial({**labels, "rate": rate, "seed": seed}, scenario, overlay)


def best(
    outcomes: Iterable[Outcome], rates: Sequence[float], labels: Mapping[str, Label]
) -> Converged | None:
    """Return what runs with these labels came to, with the best of some learning rates.

    A rate with which a run did not reach the target does not count; None if none does.
    """
    found = [each for each in outcomes if labels.items() <= each.labels.items()]
    told = []
    for rate in rates:
        runs = [each for each in found if each.labels["rate"] == rate]
        times_s = [each.reached_s for each in runs if each.reached_s is not None]
        updates = [each.reached_updates for each in runs if each.reached_updates is not None]
        if runs and len(times_s) == len(runs):
            told.append(Converged(rate, fmean(times_s), fmean(updates)))
    return min(told, key=lambda each: each.seconds, default=None)


def rows(
    outcomes: Sequence[Outcome],
    rates: Sequence[float],
    what: str,
    about: Mapping[str, Label],
    paces: Mapping[str, str],
) -> list[Row]:
    """Return a row for each pace: time and iterations to the target, beside BSP's.

    Args:
        outcomes, rates, about: see :func:`best`.
        what: the rows begin with this.
        paces: what the paper says of each, by name; BSP first.
    """
    made = {name: best(outcomes, rates, {**about, "pace": name}) for name in paces}
    bsp = made["BSP"]
    told = []
    for name, paper in paces.items():
        ours = made[name]
        if ours is None or bsp is None:
            told.append(Row(f"{what} under {name}", paper, "does not reach the target"))
            continue
        less = "" if name == "BSP" else f", {ours.seconds / bsp.seconds:.2f} of BSP's"
        told.append(
            Row(
                f"{what} under {name}",
                paper,
                f"{ours.seconds:.1f} s, {ours.iterations:.1f} iterations{less}",
                f"learning rate {ours.rate:g}",
            )
        )
    return told
