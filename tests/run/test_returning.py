"""Sites that are left out of a run's all-reduces come back: in simulation, and as processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.log import (
    Evaluated,
    Event,
    RoundDone,
    RunEnded,
    SiteLost,
    StepDone,
    fingerprint,
    read_events,
    summarise,
)
from anabranch.log.events import SiteInStep, SiteJoined
from anabranch.net.errors import LeftOut, RunAborted
from anabranch.overlay import Link, Overlay, dumps, random_complete
from anabranch.site._connections import Connections
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import simulate
from tests.seeds import seeds, slow_after

FIVE = random_complete(5, 0, low_bps=5e6, high_bps=10e6, latency_s=0.005)
RING = Overlay(
    "ring",
    FIVE.sites,
    tuple(
        Link(here, there, 5e6, 0.005)
        for site in range(5)
        for here, there in ((site, (site + 1) % 5), ((site + 1) % 5, site))
    ),
)
TEXT = """
overlay = "unused"
on_loss = "complete"
wait_s = 0.5
%s
[task]
kind = "train"
data = "digits"
model = "softmax"
learning_rate = 0.1
%s
batch_size = 8
evaluate_every = 10
[compute]
samples_per_s = 100
jitter = {kind = "lognormal", cv = 0.3}
%s
"""
PARTITION = """
[[fault]]
kind = "partition"
groups = [["site3", "site4"]]
at_s = 1.0
for_s = 2.0
"""
EVERY = 'period = {kind = "every", steps = 4}\n'


class Run:
    """A finished run's log."""

    def __init__(self, log: Path) -> None:
        self.events: list[Event] = [event for _, event in read_events(log)]
        self.summary = summarise(self.events)
        self.fingerprint = fingerprint(log)

    def sites_of(self, round: int) -> list[int]:
        """Which sites had the result of a round."""
        done = (each for each in self.events if isinstance(each, RoundDone))
        return sorted(each.site for each in done if each.round == round)

    def moments_of(self, kind: type[SiteLost | SiteJoined | SiteInStep], site: int) -> list[float]:
        """When something happened to a site, after the beginning."""
        found = (each for each in self.events if isinstance(each, kind))
        return [each.at_s for each in found if each.site == site and each.at_s > 0]


Simulate = Callable[..., Run]


@pytest.fixture
def simulated(tmp_path: Path) -> Simulate:
    count = iter(range(1000))

    def run(
        top: str,
        tables: str = PARTITION,
        task: str = "momentum = 0.9",
        overlay: Overlay = FIVE,
        on_loss: str = "complete",
    ) -> Run:
        log = tmp_path / f"{next(count)}.db"
        text = (TEXT % (top, task, tables)).replace('"complete"', f'"{on_loss}"')
        simulate(loads(text), overlay, log)
        return Run(log)

    return run


def check_return(done: Run, rounds: int, sites: tuple[int, ...], healed_s: float) -> None:
    """Check that sites were lost, came back once they could, and take part to the end."""
    assert done.summary.error is None
    assert [each.round for each in done.summary.rounds] == list(range(1, rounds + 1))
    assert done.summary.checked_rounds == rounds
    assert done.summary.checksums_agree
    for site in sites:
        (lost_s,), (back_s,) = done.moments_of(SiteLost, site), done.moments_of(SiteJoined, site)
        (in_step_s,) = done.moments_of(SiteInStep, site)
        assert lost_s < healed_s < back_s < healed_s + 2.0
        steps = [each for each in done.summary.steps if each.site == site]
        assert max(each.at_s for each in steps) > in_step_s
        assert not any(lost_s + 0.5 < each.at_s < back_s for each in steps)
    assert done.sites_of(rounds) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("top", "task"),
    slow_after(
        3,
        [
            ("", "momentum = 0.9"),
            ("", 'optimiser = "adam"'),
            (EVERY, "momentum = 0.9"),
            (EVERY + "average = {outer = {}}", "momentum = 0.9"),
            (EVERY + "average = {delay = 2}", 'optimiser = "adam"'),
            (EVERY + "average = {fragments = 2}", "momentum = 0.9"),
            (EVERY + "average = {outer = {}, delay = 4, fragments = 4}", "momentum = 0.9"),
            ('period = {kind = "moved", by = 0.1, most_steps = 10}', "momentum = 0.9"),
            ('period = {kind = "adaptive", first_steps = 3}', "momentum = 0.9"),
        ],
    ),
)
def test_sites_that_a_partition_cut_off_are_back_once_it_heals(
    top: str, task: str, simulated: Simulate
) -> None:
    top += "\nstop = {rounds = 40}"
    if "fragments" in top:
        top = top.replace("40", "80")
    rounds = 80 if "fragments" in top else 40
    done = simulated(top, task=task)
    check_return(done, rounds, (3, 4), healed_s=3.0)
    if "outer" in top and "fragments" in top:
        assert done.fingerprint == simulated(top, task=task).fingerprint


def test_so_are_sites_that_reach_the_others_through_one_another_alone(
    simulated: Simulate,
) -> None:
    # 0, 1 and 2 go on; 3 is joined to 2 and 4, and 4 to 3 and 0.
    done = simulated("stop = {rounds = 40}", overlay=RING)
    check_return(done, 40, (3, 4), healed_s=3.0)


def test_with_retry_it_is_the_same(simulated: Simulate) -> None:
    done = simulated("stop = {rounds = 40}", on_loss="retry")
    check_return(done, 40, (3, 4), healed_s=3.0)


def test_a_site_that_is_started_again_takes_part_again(simulated: Simulate) -> None:
    kill = '[[fault]]\nkind = "kill"\nsite = "site0"\nat_s = 1.0\nfor_s = 2.0\n'
    done = simulated("stop = {rounds = 40}", kill)
    check_return(done, 40, (0,), healed_s=3.0)
    evaluated = [each for each in done.events if isinstance(each, Evaluated)]
    assert [each.round for each in evaluated] == [10, 20, 30, 40]
    assert evaluated[-1].site == 0  # the first site looks at the model, also once it is back


def test_a_site_that_lost_the_scheduler_for_too_long_joins_again(
    simulated: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "that_may_pipe", lambda self: [])
    cut = '[[fault]]\nkind = "disconnect"\nsite = "site1"\nat_s = 4.0\nfor_s = 8.0\n'
    done = simulated("stop = {rounds = 160}", cut)
    (lost_s,), (back_s,) = done.moments_of(SiteLost, 1), done.moments_of(SiteJoined, 1)
    assert 9.0 < lost_s < 12.0 < back_s < 14.0
    assert done.sites_of(160) == [0, 1, 2, 3, 4]
    assert done.summary.checksums_agree


def test_one_that_no_scheduler_answers_gives_up_in_time_and_the_others_go_on(
    simulated: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "that_may_pipe", lambda self: [])
    cut = '[[fault]]\nkind = "disconnect"\nsite = "site1"\nat_s = 1.0\nfor_s = 1e6\n'
    done = simulated("stop = {rounds = 40}", cut)
    assert done.summary.error is None
    assert done.sites_of(40) == [0, 2, 3, 4]


def test_one_whose_neighbours_reach_the_scheduler_goes_on_through_them(
    simulated: Simulate,
) -> None:
    cut = '[[fault]]\nkind = "disconnect"\nsite = "site1"\nat_s = 1.0\nfor_s = 1e6\n'
    done = simulated("stop = {rounds = 40}", cut)
    assert done.summary.error is None
    assert done.sites_of(40) == [0, 1, 2, 3, 4]
    assert done.summary.checksums_agree
    assert not [each for each in done.events if isinstance(each, SiteLost)]


@pytest.mark.parametrize("top", ["", EVERY, EVERY + "average = {delay = 4}"])
def test_a_run_that_ends_meanwhile_ends_well_for_the_sites_that_wait(
    top: str, simulated: Simulate
) -> None:
    apart = PARTITION.replace("for_s = 2.0", "for_s = 1e6")
    done = simulated(top + "\nstop = {rounds = 20}", apart)
    assert done.summary.error is None
    assert done.sites_of(20) == [0, 1, 2]


@pytest.mark.parametrize("after_s", slow_after(2, [3.0, 3.03, 3.05, 3.08, 3.1, 3.2]))
@pytest.mark.parametrize("top", ["", pytest.param(EVERY, marks=pytest.mark.slow)])
def test_a_run_that_stops_while_sites_come_back_ends_well(
    top: str, after_s: float, simulated: Simulate
) -> None:
    done = simulated(f"{top}\nstop = {{rounds = 400, after_s = {after_s}}}")
    assert done.summary.error is None
    assert done.summary.checksums_agree
    (ended,) = (each for each in done.events if isinstance(each, RunEnded))
    assert ended.at_s < after_s + 2.0


def test_a_site_that_is_cut_off_again_and_again_is_back_each_time(simulated: Simulate) -> None:
    often = "".join(
        f'[[fault]]\nkind = "cut"\nsite = "site{site}"\nat_s = {at_s}\nfor_s = 1.0\n'
        for site, at_s in ((1, 1.0), (2, 1.5), (1, 3.5), (3, 4.0), (1, 6.0))
    )
    done = simulated("stop = {rounds = 90}", often)
    assert len(done.moments_of(SiteJoined, 1)) == 3
    assert done.sites_of(90) == [0, 1, 2, 3, 4]
    assert done.summary.checksums_agree


@seeds(1, 8)
def test_whatever_is_cut_and_when_all_sites_end_with_one_model(
    seed: int, simulated: Simulate
) -> None:
    draw = random.Random(seed)
    faults = ""
    for turn in range(2):
        first_site = draw.randrange(5)
        apart = [first_site, (first_site + 1) % 5][: draw.choice([1, 2])]  # a ring stays whole
        names = ", ".join(f'"site{site}"' for site in apart)
        faults += f'[[fault]]\nkind = "partition"\ngroups = [[{names}]]\n'
        at_s = 3.5 * turn + draw.uniform(0.2, 1.0)
        faults += f"at_s = {at_s}\nfor_s = {draw.uniform(0.6, 2.0)}\n"
    more = ["", EVERY + "average = {outer = {}}", EVERY + "average = {delay = 3}"]
    top = f"seed = {seed}\nstop = {{rounds = {[80, 25, 25][seed % 3]}}}\n{more[seed % 3]}"
    overlay = RING if seed % 2 else FIVE
    done = simulated(top, faults, overlay=overlay)
    assert done.summary.error is None
    assert done.summary.checksums_agree
    assert done.sites_of(len(done.summary.rounds)) == [0, 1, 2, 3, 4]
    if seed == 2:
        assert done.fingerprint == simulated(top, faults, overlay=overlay).fingerprint


def test_where_a_loss_ends_the_run_it_still_does(simulated: Simulate) -> None:
    with pytest.raises(RunAborted, match=r"has said nothing for 0\.5 s") as caught:
        simulated("stop = {rounds = 40}", on_loss="abort")
    assert not isinstance(caught.value, LeftOut)


def test_the_others_go_on_where_they_cannot_hand_the_state_on(
    simulated: Simulate, tmp_path: Path
) -> None:
    module = tmp_path / "lists_of_its_own.py"
    module.write_text(
        "import numpy as np\n"
        "class Work:\n"
        "    def __init__(self, context):\n"
        "        self.own = np.zeros(3 + context.site, np.float32)\n"
        "        self.buffer = np.zeros(100, np.float32)\n"
        "    def local_step(self, samples):\n"
        "        self.buffer[:] = 1.0\n"
        "    def apply(self, round):\n"
        "        return round\n"
        "    def evaluate(self):\n"
        "        return 0.5\n"
        "    def state_dict(self):\n"
        "        return {'model': {}, 'own': self.own}\n"
        "    def load_state_dict(self, state):\n"
        "        self.own[:] = state['own']\n"
        "class Says(Work):\n"
        "    own_state = ('own',)\n"
    )

    def text(factory: str) -> str:
        task = f'[task]\nkind = "own"\nfactory = "lists_of_its_own:{factory}"\n'
        return (TEXT % ("stop = {rounds = 40}", "", PARTITION)).replace(
            TEXT[TEXT.index("[task]") : TEXT.index("[compute]")].replace("%s", ""),
            f'{task}folder = "{tmp_path}"\nbatch_size = 8\nevaluate_every = 10\n',
        )

    for factory, sites in (("Work", [0, 1, 2]), ("Says", [0, 1, 2, 3, 4])):
        log = tmp_path / f"{factory}.db"
        simulate(loads(text(factory)), FIVE, log)
        done = Run(log)
        assert done.summary.error is None
        assert done.sites_of(40) == sites


THREE = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.005)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_process_that_an_outage_cut_off_is_back_once_it_is_over(tmp_path: Path) -> None:
    top = EVERY + "average = {outer = {}}\nstop = {rounds = 12}"
    outage = """
    [[fault]]
    kind = "partition"
    groups = [["site0"]]
    at_s = 0.5
    for_s = 2.0
    """
    text = TEXT.replace('"unused"', '"overlay.toml"') % (top, "momentum = 0.9", outage)
    path, log = tmp_path / "scenario.toml", tmp_path / "run.db"
    path.write_text(text.replace("samples_per_s = 100", "samples_per_s = 80"))
    (tmp_path / "overlay.toml").write_text(dumps(THREE))
    run_locally(path, 0, THREE, log)
    done = Run(log)
    assert done.summary.error is None
    assert done.summary.checksums_agree
    assert done.moments_of(SiteLost, 0)
    back_s = done.moments_of(SiteJoined, 0)[-1]
    last = len(done.summary.rounds)
    assert done.sites_of(last) == [0, 1, 2]
    steps = [each for each in done.events if isinstance(each, StepDone) and each.site == 0]
    assert max(each.at_s for each in steps) > back_s > 2.5
