"""What a real run refuses of a scenario's faults: the entry is named, and the fix."""

from __future__ import annotations

import re

import msgspec
import pytest

from anabranch.overlay import internet2_9
from anabranch_lab.run.scenario import Scenario, ScenarioError, check_real, loads


def scenario(fault: str, top: str = "") -> Scenario:
    good = '{kind = "kill", site = "dc1", at_s = 1}'
    return loads(
        f'overlay = "internet2-9"\n{top}fault = [{good}, {{{fault}}}]\nstop.rounds = 3\n'
        '[task]\nkind = "exchange"\nelements = 10\n'
    )


LINKS = [
    'kind = "cut", pair = ["dc1", "dc2"], at_s = 1, for_s = 2',
    'kind = "slow", link = ["dc1", "dc2"], at_s = 1, factor = 2',
    'kind = "outages", all = true, up_s = 1, down_s = 1',
    'kind = "partition", groups = [["dc1"]], at_s = 1',
]
PROCESSES = [
    'kind = "pause", site = "dc1", at_s = 1, for_s = 2',
    'kind = "sleep", site = "dc1", awake_s = 1, asleep_s = 2',
]


@pytest.mark.parametrize("fault", [*LINKS, *PROCESSES])
def test_a_real_run_that_holds_its_links_may_have_faults_of_links_and_processes(
    fault: str,
) -> None:
    check_real(scenario(fault), internet2_9())


@pytest.mark.parametrize("fault", PROCESSES)
def test_an_emulated_run_may_have_those_of_processes(fault: str) -> None:
    check_real(scenario(fault), internet2_9(), emulated=True)


@pytest.mark.parametrize("fault", LINKS)
def test_links_that_no_sender_holds_have_no_faults(fault: str) -> None:
    with pytest.raises(ScenarioError, match=r"^fault\[1\]: links .* the kernel holds them; leave"):
        check_real(scenario(fault), internet2_9(), emulated=True)
    real = msgspec.structs.replace(scenario(fault), shaped=False)
    with pytest.raises(ScenarioError, match=r"^fault\[1\]: links .* they are real; leave it out"):
        check_real(real, internet2_9())


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (
            'kind = "pause", site = "dc1", round = 2, for_s = 2',
            "fault[1].round: no real site knows when another begins a round; give at_s, or run",
        ),
        (
            'kind = "kill", site = "dc1", at_s = 2, for_s = 2',
            "fault[1].for_s: nothing starts a killed site of a real run again; leave",
        ),
        (
            'kind = "slow", site = "dc1", at_s = 2, factor = 2',
            "fault[1]: slow dc1 2x: this happens in simulation only; leave it out, or run `anab",
        ),
        (
            'kind = "clock", site = "dc1", at_s = 2, drift = 0.1',
            "fault[1]: clock of dc1: gain +0.1 s/s: this happens in simulation only; leave it out",
        ),
        (
            'kind = "disconnect", site = "dc1", at_s = 2',
            "fault[1]: disconnect dc1: this happens in simulation only; leave it out, or run",
        ),
    ],
)
def test_what_happens_in_simulation_only_is_refused(fault: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{re.escape(complaint)}"):
        check_real(scenario(fault), internet2_9())
