"""Beyond the paper: how merge rules withstand clients that are adversaries."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from anabranch.fleet import Compute
from anabranch.merge import AnyMerge, Krum, Mean, Median, OutlierFilter, TrimmedMean
from anabranch.pace import FedAvg
from anabranch.period import Every
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.adversaries import AnyAdversaries, LabelFlip, Noise, Scaled
from papers._compare import known
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Trial, chosen
from papers.r2sp import _federated as federated

_CLIENTS, _ROUNDS, _STEPS, _BATCH, _RATE = 20, 20, 10, 8, 0.1
_SEEDS = 5
_SHARES = (0.1, 0.2, 0.3)
RULES: Mapping[str, AnyMerge] = {
    "mean": Mean(),
    "filter, beta 0.5": OutlierFilter(beta=0.5),
    "filter, beta 0": OutlierFilter(beta=0.0),
    "trimmed mean, 0.3": TrimmedMean(trim=0.3),
    "median": Median(),
    "krum, 0.3": Krum(bad=0.3),
    "multi-krum, 0.3, 10": Krum(bad=0.3, keep=10),
}


def _kinds(share: float) -> dict[str, AnyAdversaries]:
    return {
        "label flip": LabelFlip(share=share),
        "noise, 3 times as large": Noise(share=share, factor=3.0),
        "times -10": Scaled(share=share, factor=-10.0),
    }


def _trial(rule: str, kind: str, share: float, seed: int) -> Trial:
    overlay = federated.fleet(federated.PORT, _CLIENTS)
    scenario = Scenario(
        overlay=overlay.name,
        route=Star(hub=federated.SERVER),
        pace=FedAvg(),
        merge=RULES[rule],
        period=Every(steps=_STEPS),
        serve=Serve(only=(federated.SERVER,)),
        stop=Stop(rounds=_ROUNDS),
        compute=Compute(samples_per_s=_STEPS * _BATCH),
        task=Train(
            data="digits",
            model="mlp",
            hidden=(32,),
            learning_rate=_RATE,
            batch_size=_BATCH,
            evaluate_every=_ROUNDS,
            adversaries=_kinds(share)[kind] if share else None,
        ),
        sample_every_s=1e6,
        seed=seed,
    )
    labels: dict[str, str | int | float] = {
        "rule": rule,
        "kind": kind,
        "share": share,
        "seed": seed,
    }
    unused = ("workers", "gaps", "curve", "accuracy_by_site")
    return Trial(labels, scenario, overlay, without=unused)


def _make(lab: Lab) -> Result:
    seeds = lab.seeds(_SEEDS)
    shares = _SHARES[-1:] if lab.quick else _SHARES
    cases = [("none", 0.0), *((kind, share) for kind in _kinds(0.1) for share in shares)]
    trials = [_trial(rule, *case, seed) for rule in RULES for case in cases for seed in seeds]
    outcomes = lab.measure(trials, may_abort=True)  # the mean of updates times -10 may be no number
    rows = []
    for kind, share in cases:
        for rule in RULES:
            runs = chosen(outcomes, rule=rule, kind=kind, share=share)
            found = [0.0 if each.aborted else known(each.accuracy, "accuracy") for each in runs]
            rows.append(
                Row(
                    f"{kind}, {share:.0%}: {rule}",
                    "",
                    f"{fmean(found):.1%} ({min(found):.1%} to {max(found):.1%})",
                    seeds=f"{len(seeds)}",
                )
            )
    note = (
        f"8 x 8 digits dealt evenly to {_CLIENTS} clients, a perceptron with 32 hidden units, "
        f"{_ROUNDS} rounds of FedAvg of {_STEPS} local steps, rate {_RATE:g}; held-out accuracy in "
        f"the end, 0 of a run that diverges; means of {len(seeds)} seeds, the least to the most in "
        "parentheses."
    )
    return Result(tuple(rows), (note,))


EXPERIMENTS = (Experiment("r2sp/robust", "accuracy with adversaries, by merge rule", _make),)
