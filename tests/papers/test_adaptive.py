"""The adaptive period beside fixed ones: what networks are, what runs are compared, and how."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from anabranch.overlay import aws_8
from anabranch_lab.run.scenario._checks import check
from papers import Lab, Outcome
from papers.intermittent import _setting as setting
from papers.intermittent.adaptive import mean_s

ALL = {**setting.NETWORKS, **setting.CHANGING}


def ran(*reached_s: float | None) -> list[Outcome]:
    return [Outcome({}, "told.toml", 4, 40.0, 10.0, 0, reached_s=each) for each in reached_s]


@pytest.mark.parametrize("name", ALL)
def test_every_period_can_run_on_every_network(name: str, tmp_path: Path):
    for period in setting.periods():
        trial = setting.trial(Lab(tmp_path), name, period, 0.2, 7, 100.0)
        check(trial.scenario, trial.overlay)
        assert trial.scenario.stop.reached_by == "mean"


def test_a_slowed_network_has_slower_links_and_ports():
    slow = setting.slowed(setting.edge(3, 2e6, 8e6, 0.01), 4.0)
    assert {link.rate_bps for link in slow.links} == {2e6}
    assert {(site.uplink_bps, site.downlink_bps) for site in slow.sites} == {(5e5, 2e6)}


def test_a_changing_networks_links_all_change_at_once():
    for link in setting.changing(aws_8(), 60.0, 50.0).links:
        assert link.trace is not None
        assert link.trace.rate_bps(59.0) == link.rate_bps
        assert link.trace.rate_bps(60.0) == 50 * link.rate_bps


def test_a_period_with_which_a_run_does_not_get_there_is_never_the_best():
    assert mean_s(ran(10.0, None)) == math.inf
    assert mean_s(ran(10.0, 40.0)) == pytest.approx(20.0)
