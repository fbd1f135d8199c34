"""The common setting of HAAF's figures (section 6.1): network, fleet, task, and the schemes.

12 sites train and one serves. Links of 1 to 10 Gbit/s and 10 to 50 ms join each two sites. The
paper does not say how long a batch takes, and eq. 14 weighs that time against the links' latencies.
Here a site of mean speed takes 0.1 s. That time was chosen: with it the paper's search takes three
trees or so at a Gini coefficient of 0.3, as in Fig. 8, and one at 0.1, where the paper has all
schemes alike. ``papers/haaf/trees.py`` has other times. Parameters are the paper's, but for tuned
rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.fleet import Compute, SiteCompute, uneven_samples_per_s
from anabranch.log import StepDone
from anabranch.merge import AnyMerge, DataSize, Fairness, Mean, Product, Staleness
from anabranch.overlay import Overlay, random_complete
from anabranch.pace import AnyPace, Asp, Bsp
from anabranch.period import Every, EveryStep
from anabranch.plan import AnyForestSearch, AnyPlanner, Balanced, EdaForest, Fapt, ForestRoute, Star
from anabranch_lab.run.scenario import Scenario, Serve, Simulation, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import Dirichlet
from anabranch_lab.tasks.sampling import Resampled
from papers._compare import known
from papers._lab import Lab, events_of
from papers._trial import Label, Outcome, Trial
from papers._tuning import best_rates

WORKERS = 12
BATCH = 128
BATCH_S = 0.1  # that a site of mean speed computes
RATE = 0.01  # the paper's learning rate
EARLY = 0.7  # the accuracy that runs at the paper's rate are to reach
FEW = 3  # trees, of the paper's Fig. 8
FEW_TREES = f"HAAF, at most {FEW} trees"
ANY_TREES = "HAAF, trees as searched"
LONGEST_S = 2000.0  # of a run to the target
MANY = 100_000  # updates, more than there is time for
_BATCHES_PER_S = {0.1: 48.0, 0.3: 48.0, 0.6: 24.0}  # of HAAF's workers together, about, by Gini
_EVEN = 0.1
_LOOK_ROUNDS = 3  # from one evaluation to the next; elsewhere as many batches, about
_UNUSED = ("workers", "gaps", "loss_fell_s")  # fields of outcomes
_QUICK_S = 3.0
_NOTE = (
    "A server that computes nothing, links of 1 to 10 Gbit/s and 10 to 50 ms, {learner.what}, "
    "Dirichlet alpha = 1, beta = 0.999, L = 100, plain SGD, batches of {learner.batch}; a batch "
    f"takes a site of mean speed {BATCH_S:g} s. Workers' speeds have exactly the Gini coefficient. "
    "Networks, data and models are drawn anew with each seed, and the same speeds are dealt to "
    "other sites. Medians, the least to the most in parentheses; ratios are geometric means and "
    "gains are means, seed by seed, with 95 % intervals of Student's t."
)
_TUNED_NOTE = (
    "Accuracy is of the first {learner.looked_at:,} held-out samples, after each "
    f"{_LOOK_ROUNDS} rounds of the synchronous schemes, and about as many batches of the others; "
    "so times are rounded up by as much. {literal}Ours: the rate with which each scheme reaches "
    "{learner.target:.0%} soonest, of rates a factor of two apart, on {tries} of the seeds that "
    "are not measured."
)
_LITERAL_NOTE = (
    f"Literal: the paper's initial learning rate of {RATE:g}, constant, by which the server's "
    "model moves along each weighed update. "
)
_QUICK_NOTE = (
    "Quick: one seed, a perceptron on 8 x 8 digits, rates that are not tuned, and "
    f"{_QUICK_S:g} s or little more; says that it runs, and nothing of the paper."
)


@dataclass(frozen=True, slots=True)
class Learner:
    """A model and its data.

    Args:
        what: both, as text.
        data, model: see :class:`anabranch_lab.run.scenario.tasks.Train`.
        target: the accuracy at which a run has converged far enough to compare times.
        first: the learning rate with which tuning begins, where workers wait for each other; twice
            as large where they do not, and weights shorten the steps.
        batches: that all workers together compute in a run to the end, about.
        batch: samples of a batch.
        looked_at: held-out samples of an evaluation.
        tries: seeds on which learning rates are tried, counted from the first; none is measured.
    """

    what: str
    data: Literal["digits", "fashion-mnist", "cifar-10-part"]
    model: Literal["mlp", "lenet-5", "cnn-6"]
    target: float
    first: float
    batches: int = 3600
    batch: int = BATCH
    looked_at: int = 2000
    tries: tuple[int, ...] = (1000, 1001)


LENET = Learner("LeNet-5 on Fashion-MNIST", "fashion-mnist", "lenet-5", target=0.8, first=0.2)
LONGER_TIMES = 5
LENET_LONGER = replace(LENET, batches=LONGER_TIMES * LENET.batches)
_QUICK = Learner("a perceptron on 8 x 8 digits", "digits", "mlp", target=0.7, first=0.2, batch=16)


_BY_DATA = DataSize()


@dataclass(frozen=True, slots=True)
class Scheme:
    """How sites synchronise.

    Args:
        route, pace, merge: see :class:`anabranch_lab.run.scenario.Scenario`.
    """

    route: AnyPlanner
    pace: AnyPace
    merge: AnyMerge = _BY_DATA


@dataclass(frozen=True, slots=True)
class Case:
    """What schemes that are compared share.

    Args:
        gini: of the workers' speeds, exactly.
        seed: of network, speeds' order, data and model.
        learner: the model and its data.
        workers: how many; schemes must be made for as many.
        batch_s: that a worker of mean speed computes for a batch, seconds.
        alpha: of the Dirichlet distribution by which labels are dealt.
        beta: of resampling.
        steps: local steps between a worker's pull and its push.
        fast: how many workers have the higher of two speeds; None for speeds that are log-normal.
    """

    gini: float
    seed: int
    learner: Learner = LENET
    workers: int = WORKERS
    batch_s: float = BATCH_S
    alpha: float = 1.0
    beta: float = 0.999
    steps: int = 1
    fast: int | None = None


def haaf(
    most_trees: int | None = None,
    a: float = 0.8,
    q: float = 1.0,
    lipschitz: float = 100.0,
    workers: int = WORKERS,
    search: AnyForestSearch | None = None,
) -> Scheme:
    """Return the paper's scheme: its search, and the weights of eq. 10.

    Args:
        most_trees: m_max of Algorithm 3; None: one for each worker.
        a, q, lipschitz: of eq. 8 and 9.
        workers: how many.
        search: another search, or given groups.
    """
    weights = (DataSize(), Fairness(q=q, lipschitz=lipschitz), Staleness(a=a))
    found = search or EdaForest(most_trees=most_trees or workers)
    return Scheme(ForestRoute(server=server(workers), search=found), Asp(), Product(of=weights))


def server(workers: int = WORKERS) -> str:
    """Return the name of the site that serves: the last."""
    return f"site{workers}"


def ps(workers: int = WORKERS) -> Scheme:
    """Return the synchronous parameter server."""
    return Scheme(Star(hub=server(workers)), Bsp())


def synchronous(workers: int = WORKERS) -> dict[str, Scheme]:
    """Return the schemes that the paper compares with, by name."""
    return {
        "PS": ps(workers),
        "AVL": Scheme(Balanced(root=server(workers)), Bsp()),
        "FAT": Scheme(Fapt(roots=(server(workers),)), Bsp()),
    }


ASYNCHRONOUS_PS = Scheme(Star(hub=server()), Asp())


def network(seed: int, workers: int = WORKERS) -> Overlay:
    """Return the network of the workers and the server, which comes last."""
    drawn = random_complete(
        workers + 1, seed, low_bps=1e9, high_bps=10e9, latency_s=(0.01, 0.05), loss=0.0
    )
    return replace(drawn, name=f"haaf-{workers}-{seed}")


def scenario(
    how: Scheme,
    case: Case,
    rate: float,
    *,
    ends_s: float | None = None,
    lasts_s: float | None = None,
    quick: bool = False,
) -> Scenario:
    """Return the scenario of a run, to the target or to the end.

    Args:
        how: the scheme.
        case: the rest.
        rate: the learning rate.
        ends_s: when a run to the target ends without it, seconds; None for a run to the end, of as
            many batches as the learner has.
        lasts_s: how long a run to the end takes where workers do not wait, seconds; None: about as
            long as HAAF's.
        quick: train a perceptron on digits that come with scikit-learn, for a few seconds.
    """
    learner = _QUICK if quick else case.learner
    waits, to_end = how.pace.barrier, ends_s is None
    limit_s = ends_s
    if to_end and not waits:
        limit_s = takes_s(case, learner.batches) if lasts_s is None else lasts_s
    if quick:
        limit_s = _QUICK_S * case.batch_s / BATCH_S * max(1.0, case.steps / 4)
    return Scenario(
        overlay="haaf",
        route=how.route,
        pace=how.pace,
        merge=how.merge,
        period=EveryStep() if case.steps == 1 else Every(steps=case.steps),
        serve=Serve(only=(server(case.workers),)),
        sampling=Resampled(beta=case.beta),
        task=Train(
            data=learner.data,
            model=learner.model,
            learning_rate=rate,
            batch_size=learner.batch,
            partition=Dirichlet(alpha=case.alpha),
            evaluate_every=_LOOK_ROUNDS,
            evaluate_every_s=None if waits else takes_s(case, _LOOK_ROUNDS * WORKERS),
            evaluate_samples=learner.looked_at,
            target_accuracy=learner.target,
        ),
        stop=Stop(
            rounds=learner.batches // case.workers if to_end and waits else MANY,
            after_s=limit_s,
            at_target=not to_end,
        ),
        compute=compute(case, learner.batch),
        sample_every_s=1e6,
        seed=case.seed,
    )


def batches_end_s(of: tuple[Scheme, Case], data_dir: Path | None = None) -> float:
    """Return when a scheme's workers have together computed the learner's batches, seconds.

    Times depend neither on numbers nor on weights, so chunks have sizes alone.

    Args:
        of: the scheme, whose workers do not wait for each other; and the case.
        data_dir: where the data are.
    """
    how, case = of
    batches = case.learner.batches
    ends_s, ended_s = takes_s(case, batches), list[float]()
    while len(ended_s) < batches:
        made = msgspec.structs.replace(
            scenario(how, case, RATE, lasts_s=ends_s),
            merge=Mean(),
            simulation=Simulation(tensors="sizes"),
        )
        events = events_of(made, network(case.seed, case.workers), data_dir)
        steps = [each for each in events if isinstance(each, StepDone)]
        ended_s = [each.at_s for each in steps for _ in range(each.samples // case.learner.batch)]
        ends_s *= 2
    return sorted(ended_s)[batches - 1]


def takes_s(case: Case, batches: int) -> float:
    """Return about how long HAAF's workers together take for so many batches, seconds."""
    return batches / _BATCHES_PER_S[case.gini] * case.batch_s / BATCH_S


def compute(case: Case, batch: int) -> Compute:
    """Return the computing of workers whose speeds have the case's Gini coefficient."""
    sites = {
        f"site{site}": SiteCompute(samples_per_s=batch / batch_s)
        for site, batch_s in enumerate(batch_times_s(case))
    }
    return Compute(samples_per_s=batch / case.batch_s, sites=sites)


def batch_times_s(case: Case) -> list[float]:
    """Return how long a batch takes each worker, seconds."""
    if case.fast is None:
        speeds = uneven_samples_per_s(case.workers, 1.0, case.gini, case.seed)
    else:
        speeds = two_speeds(case.workers, case.fast, case.gini)
    return [case.batch_s / speed for speed in speeds]


def two_speeds(workers: int, fast: int, gini: float) -> tuple[float, ...]:
    """Return speeds of two kinds, of mean 1 and exactly this Gini coefficient; fast ones first.

    >>> [round(speed, 3) for speed in two_speeds(4, 1, 0.5)]
    [3.0, 0.333, 0.333, 0.333]
    """
    share = gini + fast / workers  # that the fast ones have of all speed
    high, low = workers * share / fast, workers * (1 - share) / (workers - fast)
    return (high,) * fast + (low,) * (workers - fast)


def trial(
    lab: Lab,
    how: Scheme,
    case: Case,
    rate: float,
    *,
    ends_s: float | None = None,
    **labels: Label,
) -> Trial:
    """Return a run.

    A run to the end keeps its curve and its sites' accuracies, and one to the target neither.

    Args:
        lab: runs it.
        how, case, rate, ends_s: see :func:`scenario`.
        labels: further labels of the run.
    """
    lasts_s = None
    if ends_s is None and not how.pace.barrier and not lab.quick:
        (lasts_s,) = lab.map(batches_end_s, [(how, case)], float)
    about: dict[str, Label] = {"gini": case.gini, "rate": rate, "seed": case.seed}
    if case.fast is not None:
        about["fast"] = case.fast
    return Trial(
        {**labels, **about},
        scenario(how, case, rate, ends_s=ends_s, lasts_s=lasts_s, quick=lab.quick),
        network(case.seed, case.workers),
        without=_UNUSED if ends_s is None else (*_UNUSED, "curve", "accuracy_by_site"),
    )


def early(case: Case) -> Case:
    """Return a case whose target is the early one."""
    return replace(case, learner=replace(case.learner, target=EARLY))


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of tuning.

    Args:
        rate: the best learning rate.
        trees: the most trees of its runs; 0 if there was none.
    """

    rate: float
    trees: int = 0


def tuned(lab: Lab, how: Scheme, case: Case) -> Tuned:
    """Return the learning rate with which a scheme reaches the target soonest.

    Rates are tried on seeds that are not measured. Where workers wait for each other, the updates
    of the model do not depend on speeds, so all Gini coefficients have one rate.

    Args:
        lab: runs the trials; if it is quick, there are none.
        how: the scheme.
        case: the rest; its seed does not count.

    Raises:
        ValueError: no rate reaches the target with all seeds.
    """
    first = case.learner.first * (1 if how.pace.barrier else 2)
    if lab.quick:
        return Tuned(first)
    if how.pace.barrier:
        case = replace(case, gini=_EVEN, fast=None)

    def make(rate: float, seed: int, ends_s: float) -> Trial:
        alone = replace(case, seed=seed)
        return trial(lab, how, alone, rate, ends_s=ends_s, use="tuning")

    seeds = [lab.seed + each for each in case.learner.tries]
    most_s = takes_s(case, case.learner.batches)
    name = f"{how}, {case}"
    found, log = best_rates(lab, {name: make}, {name: first}, seeds, most_s)
    if math.isinf(sum(found[name].times_s)):
        tried = sorted({float(each.labels["rate"]) for each in log[name]})
        raise ValueError(f"{name}: no rate of {tried} reaches the target; set a lower target")
    trees = [each.trees for each in log[name] if each.trees is not None]
    return Tuned(found[name].rate, max(trees, default=0))


def tuned_forests(lab: Lab, case: Case) -> dict[str, float]:
    """Return the best rates of HAAF with few trees, and with as many as the search takes."""
    any_number = tuned(lab, haaf(workers=case.workers), case)
    if any_number.trees <= FEW:
        return {FEW_TREES: any_number.rate, ANY_TREES: any_number.rate}
    few = tuned(lab, haaf(FEW, workers=case.workers), case)
    return {FEW_TREES: few.rate, ANY_TREES: any_number.rate}


def forests(
    lab: Lab,
    cases: Sequence[Case],
    rates: Mapping[str, Mapping[float, float]],
    *,
    ends_s: float | None = None,
    **labels: Label,
) -> list[Outcome]:
    """Run HAAF with few trees, and with as many as the search takes.

    Where the search takes few, and the rates are equal, that is one run.

    Args:
        lab: runs them.
        cases: of the runs.
        rates: by the name of the scheme, and by the Gini coefficient.
        ends_s, labels: see :func:`trial`.
    """

    def run(name: str, most: int | None, cases: Sequence[Case]) -> list[Outcome]:
        return lab.measure(
            [
                trial(
                    lab,
                    haaf(most, workers=case.workers),
                    case,
                    rates[name][case.gini],
                    ends_s=ends_s,
                    **labels,
                    scheme=name,
                )
                for case in cases
            ],
            may_abort=True,
        )

    found = run(ANY_TREES, None, cases)
    same = [
        each.aborted is None
        and known(each.trees, "trees") <= FEW
        and rates[FEW_TREES][case.gini] == rates[ANY_TREES][case.gini]
        for case, each in zip(cases, found, strict=True)
    ]
    few = run(
        FEW_TREES, FEW, [case for case, is_same in zip(cases, same, strict=True) if not is_same]
    )
    as_few = [
        replace(each, labels={**each.labels, "scheme": FEW_TREES})
        for each, is_same in zip(found, same, strict=True)
        if is_same
    ]
    return [*found, *few, *as_few]


def notes(
    lab: Lab,
    *others: str,
    learner: Learner = LENET,
    is_tuned: bool = True,
    is_literal: bool = True,
) -> tuple[str, ...]:
    """Return the notes for all rows of a figure.

    Args:
        lab: runs it.
        others: further notes.
        learner: what is trained.
        is_tuned: whether learning rates were tuned.
        is_literal: whether rows have the paper's rate too.
    """
    if lab.quick:
        return (_QUICK_NOTE, *others)
    note = f"{_NOTE} {_TUNED_NOTE}" if is_tuned else _NOTE
    literal = _LITERAL_NOTE if is_literal else ""
    return (note.format(learner=learner, tries=len(learner.tries), literal=literal), *others)
