"""Each key of the scenario language is shown to change some run; a new key that is not is found.

`test_effect.py` changes every key of three usual scenarios. Here each key of the tables that those
do not have is given another value in a scenario where it matters.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from anabranch.overlay import Overlay, random_complete, random_sparse
from anabranch_lab.run.scenario import Scenario

from .test_effect import BASES, behaviour, changed

NEAR = random_complete(4, 0, latency_s=0.01)
SPARSE = random_sparse(8, 0)
EXCHANGE: dict[str, Any] = {
    "overlay": "four",
    "task": {"kind": "exchange", "elements": 300_000, "batch_size": 10},
    "stop": {"rounds": 4},
    "compute": {"samples_per_s": 100.0},
    "route": {"kind": "star"},
}
TRAIN: dict[str, Any] = EXCHANGE | {
    "task": {
        "kind": "train",
        "model": "softmax",
        "learning_rate": 0.1,
        "batch_size": 16,
        "evaluate_every": 1,
    },
}
UNEVEN: dict[str, Any] = {"samples_per_s": 100.0, "sites": {"site1": {"samples_per_s": 30.0}}}
LATE = EXCHANGE | {
    "compute": {"samples_per_s": 100.0, "sites": {"site1": {"samples_per_s": 1.0}}},
    "stop": {"rounds": 12},
}
SERVED = TRAIN | {"pace": {"kind": "asp"}, "compute": UNEVEN, "stop": {"rounds": 8}}
FL = LATE | {"pace": {"kind": "fl-r2sp", "groups": 2, "grouping": "delay"}}
# Half of a group is enough; site1's group has its turn after its other half has come, too.
BEFORE_TURN = EXCHANGE | {
    "pace": {"kind": "fl-r2sp", "groups": 2, "fraction": 0.5},
    "compute": UNEVEN | {"sites": UNEVEN["sites"] | {"site2": {"samples_per_s": 50.0}}},
    "stop": {"rounds": 8},
}
STEPS: dict[str, Any] = {"kind": "steps", "every": 1, "factor_each": 0.5}
FEDAVG = LATE | {"pace": {"kind": "fedavg"}}
SAMPLED = LATE | {"pace": {"kind": "fedavg", "sample": 0.5}}
AVERAGED = TRAIN | {"period": {"kind": "every", "steps": 4}}
OUTER = AVERAGED | {"average": {"outer": {}}}
GOSSIP = TRAIN | {"compute": UNEVEN, "gossip": {"peers": {"kind": "random"}}}
FOREST = EXCHANGE | {
    "pace": {"kind": "asp"},
    "route": {"kind": "forest"},
    "compute": UNEVEN | {"sites": UNEVEN["sites"] | {"site2": {"samples_per_s": 10.0}}},
}
CLIENTS = TRAIN | {
    "pace": {"kind": "fedavg", "give_up_after": 2, "deadline_s": 0.5},
    "clients": {"registered": 8, "away": {"awake_s": 1.0, "asleep_s": 1.0}, "vanish": 0.2},
}
BESIDE = EXCHANGE | {"route": {"kind": "mst"}, "auxiliary": {}, "chunk_elements": 8192}
AWARE = EXCHANGE | {
    "route": {"kind": "packed"},
    "awareness": {"kind": "passive", "update_time_s": 0.05, "start": "equal"},
    "stop": {"rounds": 12},
}
PROBED = AWARE | {"awareness": AWARE["awareness"] | {"estimator": "chunk-mean"}}
BURSTING = AWARE | {"awareness": AWARE["awareness"] | {"start": "burst"}}
ORACLE = AWARE | {"awareness": {"kind": "oracle", "update_time_s": 0.05}}


def of(base: dict[str, Any], key: str, kind: str, **others: Any) -> dict[str, Any]:
    return base | {key: {"kind": kind, **others}}


def task(**others: Any) -> dict[str, Any]:
    return TRAIN | {"task": TRAIN["task"] | others}


def fault(kind: str, **others: Any) -> dict[str, Any]:
    return EXCHANGE | {"fault": [{"kind": kind, **others}], "on_loss": "complete"}


def delayed(jitter: str, **others: Any) -> dict[str, Any]:
    return EXCHANGE | {"compute": {"samples_per_s": 100.0, "jitter": {"kind": jitter, **others}}}


OF_A_SITE = EXCHANGE | {
    "compute": {
        "samples_per_s": 100.0,
        "sites": {"site1": {"slowdowns": {"starts_s": [0.0, 0.2], "factors": [1.0, 2.0]}}},
    }
}
# After some rounds one site takes fifty times as long.
SLOWED = {"starts_s": [0.0, 0.6], "factors": [1.0, 50.0]}
SLOWS = EXCHANGE | {
    "compute": {"samples_per_s": 100.0, "sites": {"site1": {"slowdowns": SLOWED}}},
    "stop": {"rounds": 12},
}
CONSTANT = {"kind": "constant", "delay_s": 0.1}
HACKED = TRAIN | {
    "pace": {"kind": "fedavg"},
    "stop": {"rounds": 6},
    "merge": {"kind": "outlier-filter"},
    "task": TRAIN["task"] | {"adversaries": {"kind": "noise", "share": 0.3, "factor": 100.0}},
}
OUTAGES = {"up_s": 0.2, "down_s": 0.1, "until_s": 1.0, "site": "site1"}
SLEEP = {"awake_s": 0.2, "asleep_s": 0.1, "until_s": 1.0, "site": "site1"}
BOTH = [["site0", "site1"], ["site2", "site3"]]

COMPUTE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (delayed("constant", delay_s=0.1), {"compute.jitter.delay_s": 0.2}),
    (delayed("lognormal", cv=0.5), {"compute.jitter.cv": 0.9}),
    (
        delayed("lognormal", mu=-2.0, sigma=1.0),
        {"compute.jitter.mu": -1.0, "compute.jitter.sigma": 0.5},
    ),
    (delayed("exponential", cv=0.5), {"compute.jitter.cv": 0.9}),
    (delayed("exponential", mean_s=0.5), {"compute.jitter.mean_s": 0.9}),
    (delayed("uniform", spread=0.5), {"compute.jitter.spread": 0.9}),
    (
        delayed("uniform", low_s=0.1, high_s=0.4),
        {"compute.jitter.low_s": 0.2, "compute.jitter.high_s": 0.9},
    ),
    (EXCHANGE, {"compute.added_delay": CONSTANT, "compute.sites": UNEVEN["sites"]}),
    (
        OF_A_SITE,
        {
            "compute.sites.site1.samples_per_s": 10.0,
            "compute.sites.site1.fixed_s": 0.5,
            "compute.sites.site1.jitter": CONSTANT,
            "compute.sites.site1.added_delay": CONSTANT,
            "compute.sites.site1.slowdowns": None,
            "compute.sites.site1.slowdowns.starts_s": [0.0, 9.0],
            "compute.sites.site1.slowdowns.factors": [1.0, 3.0],
        },
    ),
]
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (task(), {"task.schedule": {"kind": "inverse-power", "power": 0.5}}),
    (
        task(schedule=STEPS),
        {"task.schedule.every": 2, "task.schedule.factor_each": 0.25},
    ),
    (
        task(schedule={"kind": "cosine", "steps": 9}),
        {"task.schedule.steps": 7, "task.schedule.least": 0.5},
    ),
    (
        task(schedule={"kind": "inverse-power", "power": 0.75}),
        {"task.schedule.power": 0.5, "task.schedule.scale": 9},
    ),
    (
        task(schedule={"kind": "warm-up", "steps": 2}),
        {"task.schedule.steps": 4, "task.schedule.then": STEPS},
    ),
    (EXCHANGE, {"route.hub": "site2"}),
    (of(EXCHANGE, "route", "balanced"), {"route.root": "site2", "route.arity": 3}),
    (of(EXCHANGE, "route", "mst"), {"route.root": "site2"}),
    (
        of(EXCHANGE, "route", "ring"),
        {"route.order": ["site0", "site2", "site1", "site3"], "route.both_ways": True},
    ),
    (of(EXCHANGE, "route", "fapt"), {"route.roots": 2, "route.quality": "leaf-to-root"}),
    (
        FOREST,
        {
            "route.server": "site2",
            "route.search": {"kind": "eda"},
            "route.latency_weight": 0.0,
            "route.spread_weight": 0.0,
            "route.elements": 1,
            "route.within": {"kind": "packed"},
        },
    ),
    (
        of(EXCHANGE, "deal", "by-share")
        | {
            "task": {"kind": "exchange", "profile": "resnet-20", "batch_size": 10},
            "route": {"kind": "fapt"},
        },
        {"deal.cut": "tensors"},
    ),
    (of(TRAIN, "deal", "by-share") | {"route": {"kind": "fapt"}}, {"deal.cut": "tensors"}),
    (of(EXCHANGE, "deal", "adaptive") | {"route": {"kind": "packed"}}, {"deal.window": 1}),
    (task(model="mlp", hidden=[8]), {"task.hidden": [9]}),
    (
        EXCHANGE | {"simulation": {}},
        {"simulation.tensors": "real", "simulation.control_latency_s": 0.1},
    ),
    (SERVED, {"pace.share": 0.5}),
    (of(SERVED, "pace", "ssp", lead=1), {"pace.lead": 3}),
    (
        of(LATE, "pace", "safa"),
        {"pace.fraction": 0.9, "pace.lag_tolerance": 1, "pace.deadline_s": 0.2},
    ),
    (of(LATE, "pace", "r2sp"), {"pace.relaxation": 0.1}),
    (
        FL,
        {
            "pace.groups": 1,
            "pace.fraction": 0.5,
            "pace.relaxation": 0.1,
            "pace.smoothing": 0.9,
            "pace.grouping": "index",
            "pace.regroup_every": 1,
            "pace.order": "ready",
            "pace.deadline_s": 0.2,
            "pace.late_after": "never",
            "pace.give_up_after": 1,
        },
    ),
    (BEFORE_TURN, {"pace.collects": "turn"}),
    (FEDAVG, {"pace.sample": 0.5, "pace.fraction": 0.5, "pace.deadline_s": 0.2}),
    (of(SLOWS, "pace", "fedavg"), {"pace.late_after": "never"}),
    (of(SLOWS, "pace", "safa", fraction=0.9), {"pace.late_after": "never"}),
    (of(LATE, "pace", "fedavg", deadline_s=0.2), {"pace.give_up_after": 1}),
    (SAMPLED, {"pace.seed": 5}),
    (of(SERVED, "pace", "fedbuff", size=2), {"pace.size": 3, "pace.share": 0.3}),
    (AVERAGED, {"period.steps": 3, "average": {"delay": 1}}),
    (of(SERVED, "period", "every-epoch") | {"stop": {"rounds": 2}}, {"period.epochs": 2}),
    (of(TRAIN, "period", "moved", by=1.0), {"period.by": 0.1}),
    (of(TRAIN, "period", "timed", seconds=1.0), {"period.seconds": 0.5}),
    (of(TRAIN, "period", "moved", by=100.0), {"period.most_steps": 2}),
    (
        of(TRAIN, "period", "adaptive"),
        {"period.gain": 20.0, "period.first_steps": 1, "period.most_steps": 1},
    ),
    (
        AVERAGED | {"average": {}},
        {
            "average.outer": {},
            "average.delay": 1,
            "average.fragments": 2,
            "average.wire": "int4",
        },
    ),
    (
        OUTER,
        {
            "average.outer.learning_rate": 0.5,
            "average.outer.momentum": 0.5,
            "average.outer.nesterov": False,
        },
    ),
    (
        GOSSIP,
        {
            "gossip.peers": {"kind": "latency"},
            "gossip.peers.share": 0.9,
            "gossip.rule": "push-sum",
            "gossip.most_ahead": 1,
        },
    ),
    (GOSSIP | {"gossip": {"peers": {"kind": "latency"}}}, {"gossip.peers.count": 2}),
    (of(SERVED, "merge", "staleness"), {"merge.a": 0.3}),
    (of(SERVED, "merge", "fairness"), {"merge.q": 3.0, "merge.lipschitz": 1.0}),
    (
        of(SERVED, "merge", "product", of=[{"kind": "staleness"}]),
        {"merge.of": [{"kind": "fairness"}]},
    ),
    (
        HACKED,
        {"merge.beta": 1.0, "merge.patience": 1, "merge.ends_after": 1, "merge.most": 0.0},
    ),
    (
        of(TRAIN, "merge", "trimmed-mean", trim=0.25) | {"pace": {"kind": "fedavg"}},
        {"merge.trim": 0.0},
    ),
    (
        of(TRAIN, "merge", "krum", bad=0.25) | {"pace": {"kind": "fedavg"}},
        {"merge.bad": 0.0, "merge.keep": 2},
    ),
    (
        of(SERVED, "load", "tuned", most=64) | {"pace": {"kind": "r2sp"}},
        {"load.most": 20},
    ),
    (of(TRAIN, "load", "stated", samples={"site1": 8}), {"load.samples": {"site1": 32}}),
    (of(SERVED, "sampling", "resampled"), {"sampling.beta": 0.3}),
    (task(partition={"kind": "dirichlet", "alpha": 0.5}), {"task.partition.alpha": 5.0}),
    (task(partition={"kind": "shards"}), {"task.partition.per_site": 3}),
    (task(partition={"kind": "quantity", "alpha": 0.5}), {"task.partition.alpha": 5.0}),
    (
        task(partition={"kind": "mixed-dirichlet"}),
        {
            "task.partition.alpha": 0.5,
            "task.partition.outlier_alpha": 5.0,
            "task.partition.outliers": 0.75,
            "task.partition.samples_per_site": 50,
        },
    ),
    (task(adversaries={"kind": "label-flip", "share": 0.3}), {"task.adversaries.share": 0.6}),
    (
        task(adversaries={"kind": "noise", "share": 0.3}),
        {"task.adversaries.share": 0.6, "task.adversaries.factor": 9.0},
    ),
    (
        task(adversaries={"kind": "scaled", "share": 0.3}),
        {"task.adversaries.share": 0.6, "task.adversaries.factor": 9.0},
    ),
    (
        fault("kill", site="site1", at_s=0.15),
        {"fault.0.at_s": 0.25, "fault.0.site": "site2", "fault.0.for_s": 0.2},
    ),
    (fault("kill", site="site1", round=2), {"fault.0.round": 3}),
    (
        fault("pause", site="site1", at_s=0.15, for_s=0.5),
        {"fault.0.at_s": 0.25, "fault.0.site": "site2", "fault.0.for_s": 0.9},
    ),
    (fault("pause", site="site1", round=2, for_s=0.5), {"fault.0.round": 3}),
    (
        fault("cut", link=["site1", "site0"], at_s=0.15, for_s=0.3),
        {"fault.0.link": ["site2", "site0"], "fault.0.at_s": 0.25, "fault.0.for_s": 0.9},
    ),
    (fault("cut", site="site1", round=2, for_s=0.3), {"fault.0.site": "site2", "fault.0.round": 3}),
    (
        fault("cut", pair=["site1", "site0"], round=2, for_s=0.3),
        {"fault.0.pair": ["site2", "site0"]},
    ),
    (
        fault("disconnect", site="site1", at_s=0.15),
        {"fault.0.at_s": 0.25, "fault.0.site": "site2", "fault.0.for_s": 0.5},
    ),
    (fault("disconnect", site="site1", round=2), {"fault.0.round": 3}),
    (
        fault("slow", site="site1", factor=2.0, at_s=0.15, for_s=0.3),
        {
            "fault.0.site": "site2",
            "fault.0.factor": 3.0,
            "fault.0.at_s": 0.25,
            "fault.0.for_s": 0.9,
        },
    ),
    (
        fault("slow", pair=["site1", "site0"], factor=9.0, round=2),
        {"fault.0.pair": ["site2", "site0"], "fault.0.round": 3},
    ),
    (
        fault("slow", link=["site1", "site0"], factor=9.0, round=2),
        {"fault.0.link": ["site2", "site0"]},
    ),
    (
        fault("clock", site="site1", at_s=0.15, offset_s=1.0, drift=0.1),
        {
            "fault.0.site": "site2",
            "fault.0.at_s": 0.25,
            "fault.0.offset_s": 2.0,
            "fault.0.drift": 0.2,
        },
    ),
    (fault("clock", site="site1", round=2, offset_s=1.0), {"fault.0.round": 3}),
    (
        fault("partition", groups=BOTH, at_s=0.15, for_s=0.3),
        {
            "fault.0.groups": [["site0"], ["site1", "site2", "site3"]],
            "fault.0.at_s": 0.25,
            "fault.0.for_s": 0.9,
        },
    ),
    (fault("partition", groups=BOTH, round=2, for_s=0.3), {"fault.0.round": 3}),
    (
        fault("outages", **OUTAGES),
        {
            "fault.0.distribution": "fixed",
            "fault.0.until_s": 0.3,
            "fault.0.site": "site2",
            "fault.0.up_s": 0.3,
            "fault.0.down_s": 0.2,
        },
    ),
    (
        fault("sleep", **SLEEP),
        {
            "fault.0.distribution": "fixed",
            "fault.0.until_s": 0.3,
            "fault.0.site": "site2",
            "fault.0.awake_s": 0.3,
            "fault.0.asleep_s": 0.2,
        },
    ),
    (
        AWARE,
        {
            "awareness.update_time_s": 1.0,
            "awareness.update_rate": 5.0,
            "awareness.least_gain": "none",
            "awareness.start": "overlay",
            "awareness.belief": "latest",
            "awareness.estimator": "chunk-mean",
        },
    ),
    (PROBED, {"awareness.probe_chunk_elements": 10**6, "awareness.probe_chunks": 1}),
    (BURSTING, {"awareness.burst_bytes": 50_000}),
    (
        BESIDE,
        {
            "auxiliary.search": "algorithm-3",
            "auxiliary.primary_busy_bound": 20,
            "auxiliary.busy_when": "exceeded",
            "auxiliary.auxiliary_queue_length": 8,
            "auxiliary.when_full": "primary",
        },
    ),
    (SERVED | {"serve": {}}, {"serve.only": ["site1"], "serve.ahead": True}),
    (of(SERVED, "pace", "ssp", lead=2) | {"serve": {}}, {"serve.mixes": "models"}),
    (
        CLIENTS,
        {
            "clients.registered": 9,
            "clients.vanish": 0.5,
            "clients.away": None,
            "clients.away.awake_s": 2.0,
            "clients.away.asleep_s": 3.0,
        },
    ),
]
# Keys that no case here changes, and why.
NOT_SHOWN = {
    "Scenario.label": "is for titles",
    "Scenario.overlay": "these scenarios are given their overlay as a value",
    "Graph": "a simulated overlay is a value: tests/overlay read graphs with each of its keys",
    "Own": "runs code of the user's own: tests/run/test_own.py",
    "FromFile": "has a path alone",
    "GivenForest": "has all of a plan in one key",
    "EdaForest": "how long a search looks; tests/plan/test_forest_searches.py",
    "LocalForest": "seeds a search that finds the same forest of few sites",
    "Oracle": "the network of a short run does not change",
    "ForestRoute.compute_s": "says what [compute] says here",
    "Fapt.shares": "is for plans that follow another",
    "PauseFault.scheduler": "in place of a site",
    "OutagesFault.link": "in place of a site",
    "OutagesFault.pair": "in place of a site",
    "OutagesFault.all": "in place of a site",
    "Exchange.profile": "in place of elements",
}


def structs(kind: Any) -> Iterator[inspect.StructType]:
    """Yield the tables that a type of a key may hold."""
    match kind:
        case inspect.UnionType():
            for each in kind.types:
                yield from structs(each)
        case inspect.StructType():
            yield kind
        case inspect.DictType():
            yield from structs(kind.value_type)
        case inspect.ListType() | inspect.VarTupleType():
            yield from structs(kind.item_type)


def language() -> set[str]:
    """Return each key that holds no tables, as ``Table.key``."""
    found, left = set(), [inspect.type_info(Scenario)]
    seen: set[type] = set()
    while left:
        for struct in structs(left.pop()):
            if struct.cls not in seen:
                seen.add(struct.cls)
                found |= {
                    f"{struct.cls.__name__}.{each.encode_name}"
                    for each in struct.fields
                    if not any(structs(each.type))
                }
                left += [each.type for each in struct.fields]
    return found


def key_at(document: Any, path: str) -> str:
    """Return a path's last key, as ``Table.key``."""
    key, kind = "", inspect.type_info(Scenario)
    for name in path.split("."):
        tables = (
            [each for each in structs(kind) if each.tag in (None, document.get("kind"))]
            if (isinstance(document, dict))
            else []
        )
        fields = {
            f"{struct.cls.__name__}.{name}": each.type
            for struct in tables
            for each in struct.fields
            if each.encode_name == name
        }
        if fields:  # else an index, or a site's name
            [(key, kind)] = fields.items()
        document = document[int(name)] if isinstance(document, list) else document.get(name)
    return key


def other(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    found = copy.deepcopy(document)
    *tables, key = path.split(".")
    table: Any = found
    for name in tables:
        table = table[int(name)] if isinstance(table, list) else table.setdefault(name, {})
    table[key] = value
    return found


def is_excused(key: str) -> bool:
    return key in NOT_SHOWN or key.partition(".")[0] in NOT_SHOWN


def test_every_key_of_the_language_is_changed_in_some_scenario_or_excused() -> None:
    tried = {key_at(document, path) for document, paths in (*COMPUTE, *CASES) for path in paths}
    for document in BASES.values():
        for path, _ in changed(inspect.type_info(Scenario), document, ""):
            tried.add(key_at(document, path))
    known = language()
    missing = {key for key in known - tried if not is_excused(key)}
    assert missing == set(), "give each a case, or a reason in NOT_SHOWN"
    assert {key for key in NOT_SHOWN if "." in key} <= known - tried


def shown(documents: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Any]:
    return [
        pytest.param(document, paths, id=f"{number}, {next(iter(paths))}")
        for number, (document, paths) in enumerate(documents)
    ]


def check_each(
    document: dict[str, Any], paths: dict[str, Any], folder: Path, overlay: Overlay
) -> None:
    usual = behaviour(document, folder, overlay)
    silent = {
        path
        for path, value in paths.items()
        if behaviour(other(document, path, value), folder, overlay) == usual
    }
    assert silent == set()


@pytest.mark.parametrize(("document", "paths"), shown(COMPUTE))
def test_every_key_of_computing_changes_a_run(
    document: dict[str, Any], paths: dict[str, Any], tmp_path: Path
) -> None:
    check_each(document, paths, tmp_path, NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(("document", "paths"), shown(CASES))
def test_every_key_changes_a_run(
    document: dict[str, Any], paths: dict[str, Any], tmp_path: Path
) -> None:
    check_each(document, paths, tmp_path, SPARSE if document is FOREST else NEAR)
