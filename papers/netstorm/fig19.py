"""NetStorm, Fig. 19: larger models, and more sites."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, linear_regression

from anabranch import plan as plans
from anabranch.overlay import Overlay, random_sparse
from anabranch_lab.run.scenario import Stop
from anabranch_lab.run.scenario.tasks import Exchange
from papers._experiment import Experiment
from papers._lab import Lab, Label, Outcome, Trial, seconds
from papers._result import Result, Row
from papers.netstorm import _setting as setting
from papers.netstorm._setting import MXNET, PRO, times

_MODELS = {  # parameters, for 1000 classes
    "MobileNet": 4_231_976,
    "ResNet-18": 11_689_512,
    "ResNet-34": 21_797_672,
    "ResNet-50": 25_557_032,
    "ResNet-101": 44_549_160,
    "ResNet-152": 60_192_808,
    "AlexNet": 61_100_840,
}
_ROUNDS = Stop(rounds=5)
_BATCH_SIZE = 32


def sparse(sites: int, seed: int) -> Overlay:
    """Return a drawn overlay as dense as the paper's: 26 directed links for 9 sites."""
    drawn = random_sparse(sites, seed, degree=26 / 9)
    return replace(drawn, name=f"{drawn.name}-{seed}")


def _models(lab: Lab) -> list[Trial]:
    sizes = ("MobileNet", "ResNet-50", "AlexNet") if lab.quick else tuple(_MODELS)
    return [
        each
        for model in sizes
        for each in setting.dynamic_trials(
            lab,
            (MXNET, PRO),
            Exchange(elements=_MODELS[model]),
            part="a",
            model=model,
            elements=_MODELS[model],
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
        for system in (MXNET, PRO)
    ]


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(_models(lab) + _sites(lab))
    rows = (*_model_rows(outcomes), *_site_rows(outcomes))
    return Result(rows, (setting.dynamics_note(lab),))


def _mean_limit_s(outcomes: list[Outcome], sites: int) -> float:
    seeds = {int(each.labels["draw"]) for each in outcomes if each.labels["sites"] == sites}
    size_bytes = 4 * _MODELS["AlexNet"]
    return fmean(plans.limit_s(sparse(sites, seed), size_bytes) for seed in seeds)


def _pro_over_star(found: list[Outcome], **labels: Label) -> str:
    star, pro = (setting.chosen(found, system=each.name, **labels) for each in (MXNET, PRO))
    return setting.ratio(star, pro, times)


def _model_rows(outcomes: list[Outcome]) -> list[Row]:
    found = [each for each in outcomes if each.labels["part"] == "a"]
    elements = {str(each.labels["model"]): int(each.labels["elements"]) for each in found}
    took_s = {
        model: [seconds(found, model=model, system=each.name) for each in (MXNET, PRO)]
        for model in elements
    }
    millions = [each / 1e6 for each in elements.values()]
    star, pro = (
        linear_regression(millions, [each[which] for each in took_s.values()]).slope
        for which in (0, 1)
    )
    rows = [
        Row(
            f"a: {model}, {elements[model] / 1e6:.1f} M parameters, star and pro",
            "drawn only",
            f"{star_s:.1f} s, {pro_s:.1f} s: {_pro_over_star(found, model=model)}",
        )
        for model, (star_s, pro_s) in took_s.items()
    ]
    rows.append(
        Row(
            "a: seconds for each further million of parameters, star and pro",
            "grows far slower",
            f"{star:.2f} s, {pro:.2f} s: {times(star / pro)}",
            "we cut the flat buffer, not each tensor, so that only the number of parameters counts "
            "and AlexNet gains nothing over ResNet-152",
        )
    )
    return rows


def _site_rows(outcomes: list[Outcome]) -> list[Row]:
    found = [each for each in outcomes if each.labels["part"] == "b"]
    counts = sorted({int(each.labels["sites"]) for each in found})
    took_s = {
        count: [seconds(found, sites=count, system=each.name) for each in (MXNET, PRO)]
        for count in counts
    }
    rows = [
        Row(
            f"b: {count} sites, star and pro",
            "drawn only",
            f"{star_s:.1f} s, {pro_s:.1f} s: {_pro_over_star(found, sites=count)}; "
            f"pro {count * _BATCH_SIZE / pro_s:.1f} samples/s",
        )
        for count, (star_s, pro_s) in took_s.items()
    ]
    few, many = counts[0], counts[-1]
    limit = _mean_limit_s(found, few) / _mean_limit_s(found, many)
    star, pro = (
        took_s[few][which] / took_s[many][which] for which in (0, 1)
    )  # samples of each site and second, of many sites over few
    over_star = {count: star_s / pro_s for count, (star_s, pro_s) in took_s.items()}
    return [
        *rows,
        Row(
            f"b: scaling efficiency of pro, samples/s from {few} to {many} sites",
            "0.93",
            f"{pro:.2f} (star {star:.2f})",
            f"the physical limit of these networks scales with {limit:.2f}; the paper does not say "
            "how it drew its own",
        ),
        Row(
            f"b: the same of the speed-up over the star of {few} and of {many} sites",
            "0.93",
            f"{over_star[many] / over_star[few] / (many / few):.2f}",
            "if the paper's throughput is over that of the star of the same size",
        ),
    ]


EXPERIMENT = Experiment("netstorm/fig19", "larger models (a), 5 to 15 sites (b)", _make)
