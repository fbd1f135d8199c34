"""Metrics are text that Prometheus reads."""

from __future__ import annotations

import math
import re

from msgspec.structs import replace

from anabranch.record.metrics import exposition
from anabranch.record.status import SiteStatus

from ..every import every
from .test_status import RUNNING

SAMPLE = re.compile(
    r'anabranch_[a-z_]+(\{[a-z]+="([^"\\\n]|\\[\\"n])*"(,[a-z]+="([^"\\\n]|\\[\\"n])*")*\})? \S+'
)


def test_every_line_is_a_comment_or_a_sample() -> None:
    text = exposition(RUNNING)
    assert text.endswith("\n")
    for line in text.splitlines():
        if not line.startswith(("# HELP anabranch_", "# TYPE anabranch_")):
            assert SAMPLE.fullmatch(line), line
            float(line.rpartition(" ")[2])


def test_figures_are_those_of_the_status() -> None:
    lines = exposition(RUNNING).splitlines()
    for line in (
        "anabranch_running_seconds 120",
        'anabranch_sites{state="member"} 2',
        'anabranch_sites{state="lost"} 1',
        'anabranch_sites{state="awaited"} 0',
        'anabranch_site_awaited_seconds{site="austin"} 14',
        'anabranch_site_loss{site="paris"} 0.25',
        'anabranch_site_accuracy{site="paris"} 0.75',
        "anabranch_exchanges_total 41",
        "anabranch_exchanged_bytes_total 41000000",
        "anabranch_incomplete_results_total 2",
        "anabranch_plan_version 2",
        "anabranch_link_rate_bits_per_second"
        '{source="paris",target="austin",basis="measured"} 155000000',
        'anabranch_link_latency_seconds{source="paris",target="austin"} 0.04',
    ):
        assert line in lines


def test_a_rate_that_is_only_assumed_is_no_sample() -> None:
    lines = exposition(RUNNING).splitlines()
    of_links = [line for line in lines if line.startswith("anabranch_link_")]
    assert len(of_links) == 2
    assert every('source="paris"' in line for line in of_links)


def test_names_cannot_end_their_quotes() -> None:
    odd = replace(RUNNING, sites=(SiteStatus(name='a"} 1\n\\', state="member", loss=1.0),))
    [line] = [each for each in exposition(odd).splitlines() if "site_loss{" in each]
    assert line == r'anabranch_site_loss{site="a\"} 1\n\\"} 1'


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
