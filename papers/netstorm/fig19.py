"""NetStorm, Fig. 19: larger models, tensor by tensor, and more sites.

The paper cuts each tensor into chunks, and gives a root its share of the chunks, whatever their
sizes. So the roots' loads are uneven where tensors are. Ours cuts the whole buffer, where only the
number of parameters counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, linear_regression

from anabranch import plan as plans
from anabranch.overlay import Overlay, random_sparse
from anabranch_lab.run.scenario import Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.tasks.profiles import load_profile
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Label, Outcome, Trial, chosen, seconds
from papers.netstorm import _setting as setting
from papers.netstorm._setting import MXNET, OUR_PRO, PRO, PRO_FLAT, System, times

_MODELS = {
    "MobileNet": "mobilenet",
    "ResNet-18": "resnet-18",
    "ResNet-34": "resnet-34",
    "ResNet-50": "resnet-50",
    "ResNet-101": "resnet-101",
    "ResNet-152": "resnet-152",
    "AlexNet": "alexnet",
}
_STAR_FLAT = replace(MXNET, name="star, whole buffer cut", cuts_tensors=False)
_BY_MODEL = (MXNET, PRO, _STAR_FLAT, PRO_FLAT)
_BY_SITES = (MXNET, PRO, OUR_PRO)
_ROUNDS = Stop(rounds=5)
_BATCH_SIZE = 32


def sparse(sites: int, seed: int) -> Overlay:
    """Return a drawn overlay as dense as the paper's: 26 directed links for 9 sites."""
    drawn = random_sparse(sites, seed, degree=26 / 9)
    return replace(drawn, name=f"{drawn.name}-{seed}")


def _models(lab: Lab) -> list[Trial]:
    models = ("MobileNet", "ResNet-152", "AlexNet") if lab.quick else tuple(_MODELS)
    return [
        each
        for model in models
        for each in setting.dynamic_trials(
            lab, _BY_MODEL, Exchange(profile=_MODELS[model]), part="a", model=model
        )
    ]


def _sites(lab: Lab) -> list[Trial]:
    networks = 2 if lab.quick else 5
    return [
        setting.trial(
            lab,
            system,
            sparse(sites, seed),
            _ROUNDS,
            {"part": "b", "sites": sites, "draw": seed},
        )
        for sites in ((5, 9, 15) if lab.quick else (5, 7, 9, 11, 13, 15))
        for seed in range(lab.seed, lab.seed + networks)
        for system in _BY_SITES
    ]


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(_models(lab) + _sites(lab))
    rows = (*_model_rows(lab, outcomes), *_site_rows(lab, outcomes))
    sparse_note = (
        f"Part b: random sparse networks, {2 if lab.quick else 5} of each size, whose rates do not "
        f"change, and {_ROUNDS.rounds} rounds of each."
    )
    return Result(rows, (setting.dynamics_note(lab), sparse_note))


def _mean_limit_s(outcomes: list[Outcome], sites: int) -> float:
    seeds = {int(each.labels["draw"]) for each in outcomes if each.labels["sites"] == sites}
    size_bytes = load_profile("alexnet").size_bytes
    return fmean(plans.limit_s(sparse(sites, seed), size_bytes) for seed in sorted(seeds))


def _millions(model: str) -> float:
    return load_profile(_MODELS[model]).elements / 1e6


def _model_rows(lab: Lab, outcomes: list[Outcome]) -> list[Row]:
    found = [each for each in outcomes if each.labels["part"] == "a"]
    models = list(dict.fromkeys(str(each.labels["model"]) for each in found))
    seeds = setting.drawn_networks(lab)

    def of(system: System, model: str) -> list[Outcome]:
        return chosen(found, system=system.name, model=model)

    def told(star: System, pro: System, model: str) -> str:
        slow, fast = of(star, model), of(pro, model)
        return f"{seconds(slow):.1f} s, {seconds(fast):.1f} s: {setting.ratio(slow, fast, times)}"

    def slope(system: System, **draw: Label) -> float:
        took_s = [seconds(chosen(of(system, model), **draw)) for model in models]
        return linear_regression([_millions(model) for model in models], took_s).slope

    def slopes(star: System, pro: System) -> str:
        by_draw = [
            slope(star, draw=draw) / slope(pro, draw=draw)
            for draw in sorted({int(each.labels["draw"]) for each in found})
        ]
        middle = times(slope(star) / slope(pro))
        spread = f"{times(min(by_draw))} to {times(max(by_draw))}"
        return f"{slope(star):.2f} s, {slope(pro):.2f} s: {middle}, {spread}"

    def of_a_million(system: System) -> str:
        slow, fast = (
            [replace(each, round_s=each.round_s / _millions(model)) for each in of(system, model)]
            for model in ("ResNet-152", "AlexNet")
        )
        return setting.ratio(slow, fast, setting.gain)

    return [
        *(
            Row(
                f"a: {model}, {_millions(model):.1f} M parameters, "
                f"{len(load_profile(_MODELS[model]).tensors)} tensors, star and pro",
                "drawn only",
                told(_STAR_FLAT, PRO_FLAT, model),
                literal=told(MXNET, PRO, model),
                seeds=seeds,
            )
            for model in models
        ),
        Row(
            "a: seconds for each further million of parameters, star and pro",
            "grows more gradually",
            slopes(_STAR_FLAT, PRO_FLAT),
            literal=slopes(MXNET, PRO),
            seeds=seeds,
        ),
        *(
            Row(
                f"a: AlexNet over ResNet-152, parameters a second, {said}",
                "AlexNet is more efficient" if pro is PRO else "",
                of_a_million(flat),
                why,
                literal=of_a_million(pro),
                seeds=seeds,
            )
            for said, pro, flat, why in (
                (
                    "pro",
                    PRO,
                    PRO_FLAT,
                    "not known; both load their roots as evenly, see below",
                ),
                ("star", MXNET, _STAR_FLAT, "one root, so that no load can be uneven"),
            )
        ),
        *_load_rows(models),
    ]


def _load_rows(models: list[str]) -> list[Row]:
    """Return how uneven the roots' loads are, from the deal alone."""
    plan = setting.PRO.route.plan(setting.equal_rates())
    told = []
    for model in models:
        tensors = load_profile(_MODELS[model]).tensors
        carried = [0.0] * len(plan.trees)
        for chunk in plans.deal_tensors(plan, tensors, setting.CHUNK_ELEMENTS):
            carried[chunk.tree] += chunk.elements / sum(tensors)
        most = max(load / tree.share for load, tree in zip(carried, plan.trees, strict=True))
        told.append(f"{model} {most:.2f}")
    return [
        Row(
            "a: the most loaded root's elements over its share, as pro begins",
            "uneven, but for FC layers",
            "1.00 of all: the whole buffer is cut",
            literal="; ".join(told),
        )
    ]


def _site_rows(lab: Lab, outcomes: list[Outcome]) -> list[Row]:
    found = [each for each in outcomes if each.labels["part"] == "b"]
    counts = sorted({int(each.labels["sites"]) for each in found})
    few, many = counts[0], counts[-1]
    seeds = f"{2 if lab.quick else 5} drawn networks a size"
    limit = _mean_limit_s(found, few) / _mean_limit_s(found, many)

    def star_s(sites: int) -> float:
        return seconds(found, system=MXNET.name, sites=sites)

    def told(pro: System, sites: int) -> str:
        about: dict[str, Label] = {"sites": sites}
        slow, fast = (chosen(found, system=each.name, **about) for each in (MXNET, pro))
        rate = sites * _BATCH_SIZE / seconds(fast)
        return f"{seconds(fast):.1f} s, {setting.ratio(slow, fast, times)}; {rate:.1f} samples/s"

    def efficiency(system: System, **draw: Label) -> float:
        few_s, many_s = (
            seconds(found, system=system.name, sites=sites, **draw) for sites in (few, many)
        )
        return few_s / many_s

    def efficiency_over_star(system: System, **draw: Label) -> float:
        return efficiency(system, **draw) / efficiency(MXNET, **draw) / (many / few)

    def spread(measure: Callable[..., float], system: System) -> str:
        by_draw = [
            measure(system, draw=draw)
            for draw in sorted({int(each.labels["draw"]) for each in found})
        ]
        return f"{measure(system):.2f}, {min(by_draw):.2f} to {max(by_draw):.2f}"

    return [
        *(
            Row(
                f"b: {sites} sites (star {star_s(sites):.1f} s): pro, over star, samples/s",
                "drawn only",
                told(OUR_PRO, sites),
                literal=told(PRO, sites),
                seeds=seeds,
            )
            for sites in counts
        ),
        Row(
            f"b: scaling efficiency of pro, samples/s from {few} to {many} sites",
            "0.93",
            spread(efficiency, OUR_PRO),
            f"star {efficiency(MXNET):.2f}; the physical limit of these networks scales with "
            f"{limit:.2f}; the paper does not say how it drew its own",
            literal=spread(efficiency, PRO),
            seeds=seeds,
        ),
        Row(
            f"b: the same, of the speed-up over the star of {few} and of {many} sites",
            "0.93",
            spread(efficiency_over_star, OUR_PRO),
            "if the paper's throughput is over that of the star of the same size",
            literal=spread(efficiency_over_star, PRO),
            seeds=seeds,
        ),
    ]


EXPERIMENTS = (Experiment("netstorm/fig19", "larger models (a), 5 to 15 sites (b)", _make),)
