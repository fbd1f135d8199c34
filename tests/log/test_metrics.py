"""Metrics are text that Prometheus reads."""

from __future__ import annotations

import math
import re

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from anabranch.log.metrics import exposition
from anabranch.log.status import SiteStatus, Status

from ..every import every
from .test_status import RUNNING

Sample = tuple[str, frozenset[tuple[str, str]]]


def read(status: Status) -> dict[Sample, float]:
    """Return the samples that Prometheus's own parser finds, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(status))
        for sample in family.samples
    }


def of(name: str, **labels: str) -> Sample:
    return f"anabranch_{name}", frozenset(labels.items())


def test_figures_are_those_of_the_status() -> None:
    found = read(RUNNING)
    to_austin = {"source": "paris", "target": "austin"}
    for sample, value in (
        (of("running_seconds"), 120),
        (of("sites", state="member"), 2),
        (of("sites", state="lost"), 1),
        (of("sites", state="awaited"), 0),
        (of("site_awaited_seconds", site="austin"), 14),
        (of("site_loss", site="paris"), 0.25),
        (of("site_accuracy", site="paris"), 0.75),
        (of("exchanges_total"), 41),
        (of("exchanged_bytes_total"), 41_000_000),
        (of("incomplete_results_total"), 2),
        (of("plan_version"), 2),
        (of("link_rate_bits_per_second", **to_austin, basis="measured"), 155_000_000),
        (of("link_latency_seconds", **to_austin), 0.04),
    ):
        assert found[sample] == value


def test_a_rate_that_is_only_assumed_is_no_sample() -> None:
    lines = exposition(RUNNING).splitlines()
    of_links = [line for line in lines if line.startswith("anabranch_link_")]
    assert len(of_links) == 2
    assert every('source="paris"' in line for line in of_links)


def test_names_cannot_end_their_quotes() -> None:
    name = 'a"} 1\n\\'
    odd = replace(RUNNING, sites=(SiteStatus(name=name, state="member", loss=1.0),))
    assert read(odd)[of("site_loss", site=name)] == 1


def test_a_loss_that_is_no_number_is_said_as_prometheus_spells_it() -> None:
    for loss, said in ((math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")):
        sites = (SiteStatus(name="a", state="member", loss=loss),)
        assert f'anabranch_site_loss{{site="a"}} {said}\n' in exposition(
            replace(RUNNING, sites=sites)
        )


def test_types_are_said_once_each_and_counters_are_totals() -> None:
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", exposition(RUNNING), re.MULTILINE)
    assert len({name for name, _ in kinds}) == len(kinds)
    assert every(name.endswith("_total") == (kind == "counter") for name, kind in kinds)
