"""Real processes on this machine: a run ends well, or ends everywhere, and says why."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch._paths import parts_of
from anabranch.log import RunEnded, RunStarted, read_events, summarise
from anabranch.log.events import RoundDone, SchedulerRestarted, SiteLost
from anabranch.net.errors import RunAborted
from anabranch.overlay import Link, Overlay, Site, Trace, dumps, random_complete
from anabranch_lab.cli import app
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

from ..emulate.sockets import emulates

OVERLAY = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    def write(
        rounds: int = 5, task: str = 'kind = "exchange"\nelements = 20_000', top: str = ""
    ) -> Path:
        (tmp_path / "overlay.toml").write_text(dumps(OVERLAY))
        path = tmp_path / "scenario.toml"
        path.write_text(
            f'{top}overlay = "overlay.toml"\nstop = {{rounds = {rounds}}}\nchunk_elements = 2048\n'
            f'[route]\nkind = "fapt"\n[task]\n{task}\n'
        )
        return path

    return write


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Killer:
    """Kills one process of a run once the run is in its rounds."""

    def __init__(self, victim: str, log: Path, sign: signal.Signals = signal.SIGKILL) -> None:
        self._victim = victim
        self._log = log
        self._sign = sign
        self.pids: dict[str, int] = {}
        self.killed = False

    def started(self, pids: dict[str, int]) -> None:
        self.pids = pids

    def tick(self) -> None:
        if not self.killed and self.rounds_done() > 2:
            os.kill(self.pids[self._victim], self._sign)
            self.killed = True

    def rounds_done(self) -> int:
        try:
            events = [event for _, event in read_events(self._log)]
        except ValueError:  # the scheduler is just creating the log
            return 0
        return len(summarise(events).rounds) if events else 0


ENDS_WHEN_TOLD = """
from pathlib import Path

import numpy as np
from anabranch.train.checksum import checksum

class Work:
    def __init__(self, over):
        self.over = over
        self.sum, self.buffer = np.zeros(20_000, np.float32), np.zeros(20_000, np.float32)

    def local_step(self, samples):
        self.buffer[:] = samples

    def apply(self, round):
        self.sum += self.buffer
        return checksum(self.sum)

    def evaluate(self):
        return float(self.over.exists())

    def state_dict(self):
        return {"model": {"sum": self.sum}}

    def load_state_dict(self, state):
        self.sum[:] = state["model"]["sum"]

def make(context):
    return Work(Path(context.options["over"]))
"""


@pytest.fixture
def endless(scenario: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Return what writes a scenario that ends once a file exists; and that file."""

    def write(top: str = "") -> tuple[Path, Path]:
        (tmp_path / "told.py").write_text(ENDS_WHEN_TOLD)
        over = tmp_path / "over"
        task = (
            'kind = "own"\nfactory = "told:make"\nfolder = "."\nbatch_size = 1\n'
            f"evaluate_every = 1\ntarget_accuracy = 1.0\noptions = {{over = '{over}'}}"
        )
        path = scenario(1_000_000, task, top)
        text = path.read_text()
        assert text.count("rounds = 1000000") == 1
        path.write_text(text.replace("rounds = 1000000", "rounds = 1000000, at_target = true"))
        return path, over

    return write


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_run_shows_its_metrics_while_it_goes_on(
    endless: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, over = endless()

    def look() -> None:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            if 'anabranch_sites{state="member"} 3' in page.read().decode():
                over.touch()

    run_locally(path, 0, OVERLAY, tmp_path / "run.db", on_tick=look, metrics=str(port))
    assert over.exists()


def test_metrics_are_not_promised_where_nobody_would_find_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, said in (
        (["--metrics", "here"], "--metrics: "),
        (["--metrics", "0"], "give a port"),
        (["--metrics", "7701", "--emulate"], "namespace of its own"),
    ):
        done = CliRunner().invoke(app, ["run", "any.toml", "--out", str(out), *options])
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())
    assert not out.exists()


@pytest.mark.slow
def test_a_run_ends_well_and_its_log_says_so(scenario: Callable[..., Path], tmp_path: Path) -> None:
    log = tmp_path / "run.db"
    pids: dict[str, int] = {}
    run_locally(scenario(), 0, OVERLAY, log, on_started=pids.update)
    run = summarise(event for _, event in read_events(log))
    assert [done.round for done in run.rounds] == [1, 2, 3, 4, 5]
    assert run.checksums_agree
    assert run.ended
    assert run.error is None
    assert sum(run.link_bytes.values()) == 5 * 4 * 20_000 * 2 * 2  # up and down, two edges a tree
    assert len(pids) == 4
    assert not any(map(is_alive, pids.values()))


@pytest.mark.slow
def test_training_reaches_its_target_and_all_sites_hold_one_model(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    task = (
        'kind = "train"\ndata = "digits"\nmodel = "softmax"\nlearning_rate = 0.5\n'
        "batch_size = 64\nevaluate_every = 5\ntarget_accuracy = 0.85"
    )
    run_locally(scenario(rounds=40, task=task), 0, OVERLAY, log)
    run = summarise(event for _, event in read_events(log))
    assert len(run.rounds) == 40
    assert run.checked_rounds == 40
    assert run.checksums_agree
    assert run.best_accuracy is not None
    assert run.best_accuracy >= 0.85
    assert run.time_to_accuracy_s(0.85) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_others_go_on_without_a_process_that_is_killed_where_the_scenario_says_so(
    endless: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    killer = Killer("site site1", log)
    path, over = endless('on_loss = "complete"\n')

    def tick() -> None:
        killer.tick()
        if killer.killed:
            events = [event for _, event in read_events(log)]
            lost = next((k for k, each in enumerate(events) if isinstance(each, SiteLost)), None)
            if lost and sum(isinstance(each, RoundDone) for each in events[lost:]) > 20:
                over.touch()

    run_locally(path, 0, OVERLAY, log, on_tick=tick, on_started=killer.started)
    assert killer.killed
    assert not any(map(is_alive, killer.pids.values()))
    run = summarise(event for _, event in read_events(log))
    assert run.error is None
    assert [done.round for done in run.rounds] == [*range(1, len(run.rounds) + 1)]
    assert run.checksums_agree


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "named"),
    [("site site1", "site 1 (site1) died in round"), ("the scheduler", "the scheduler was killed")],
)
def test_a_process_that_is_killed_ends_the_run_and_is_named(
    victim: str, named: str, scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    killer = Killer(victim, log)
    with pytest.raises(RunAborted, match=named.replace("(", r"\(").replace(")", r"\)")):
        run_locally(
            scenario(rounds=100_000),
            0,
            OVERLAY,
            log,
            on_tick=killer.tick,
            on_started=killer.started,
        )
    assert killer.killed
    assert not any(map(is_alive, killer.pids.values()))
    events = [event for _, event in read_events(log)]
    assert isinstance(events[0], RunStarted)
    if victim != "the scheduler":
        assert isinstance(events[-1], RunEnded)
        assert named in str(events[-1].error)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_run_with_a_journal_goes_on_with_another_scheduler_where_one_is_killed(
    endless: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    """Its sites make all rounds, and hold one model in the end."""
    log = tmp_path / "run.db"
    path, over = endless('on_loss = "complete"\nleast_sites = 2\n')
    killer, other = Killer("the scheduler", log), Killer("", tmp_path / "run-2.db")

    def tick() -> None:
        killer.tick()
        if other.rounds_done() > 2:
            over.touch()

    run_locally(
        path,
        0,
        OVERLAY,
        log,
        on_tick=tick,
        on_started=killer.started,
        journal=tmp_path / "run.journal",
    )
    assert killer.killed
    assert not any(map(is_alive, killer.pids.values()))
    assert parts_of(log) == [log, tmp_path / "run-2.db"]
    first, second = ([event for _, event in read_events(part)] for part in parts_of(log))
    assert isinstance(second[1], SchedulerRestarted)
    assert isinstance(second[-1], RunEnded)
    assert second[-1].error is None
    assert not any(isinstance(event, SiteLost) for event in (*first, *second))
    done = [event for event in (*first, *second) if isinstance(event, RoundDone)]
    rounds = max(event.round for event in done)
    assert len({event.round for event in done}) >= rounds - 1  # what was being said is lost
    last = [event for event in done if event.round == rounds]
    assert len(last) == OVERLAY.size
    [checksum] = {event.checksum for event in last}
    assert checksum is not None


@pytest.mark.slow
def test_a_site_killed_before_it_joins_ends_the_run_and_leaves_a_readable_log(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    pids: dict[str, int] = {}

    def started(found: dict[str, int]) -> None:
        pids.update(found)
        os.kill(pids["site site1"], signal.SIGKILL)

    with pytest.raises(RunAborted, match="site site1 was killed by SIGKILL"):
        run_locally(scenario(), 0, OVERLAY, log, on_started=started)
    assert not any(map(is_alive, pids.values()))
    assert summarise(event for _, event in read_events(log)).rounds == ()


@pytest.mark.slow
def test_a_process_that_stands_still_ends_the_run_and_is_named(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    path = scenario(rounds=100_000)
    path.write_text("wait_s = 5\n" + path.read_text())

    def stop(victim: str, log: Path) -> str:
        killer = Killer(victim, log, signal.SIGSTOP)
        with pytest.raises(RunAborted) as ended:
            run_locally(path, 0, OVERLAY, log, on_tick=killer.tick, on_started=killer.started)
        assert killer.killed
        assert not any(map(is_alive, killer.pids.values()))
        assert summarise(event for _, event in read_events(log)).ended
        return str(ended.value)

    with ThreadPoolExecutor(2) as pool:  # most of it is waiting
        site = pool.submit(stop, "site site1", tmp_path / "one.db")
        scheduler = pool.submit(stop, "the scheduler", tmp_path / "other.db")
        assert re.match(r"site 1 \(site1\) died.*: .* said nothing for", site.result())
        assert re.match("the scheduler is gone: .* said nothing for", scheduler.result())


@pytest.mark.slow
def test_sites_end_with_the_process_that_started_them_though_the_scheduler_stands_still(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "anabranch", "run", str(scenario(rounds=100_000))]
    launched = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pids: dict[str, int] = {}
    try:
        while not (logs := [*out.rglob("*.db")]) or Killer("", logs[0]).rounds_done() < 3:
            time.sleep(0.1)
            assert launched.poll() is None
        pids = children_of(launched.pid)
        assert len(pids) == 4
        os.kill(pids["the scheduler"], signal.SIGSTOP)
        launched.kill()
        launched.wait()
        sites = [pid for name, pid in pids.items() if name != "the scheduler"]
        while any(map(goes_on, sites)):
            time.sleep(0.1)
        os.kill(pids["the scheduler"], signal.SIGCONT)
        while goes_on(pids["the scheduler"]):
            time.sleep(0.1)
    finally:
        launched.kill()
        launched.wait()
        for pid in filter(is_alive, pids.values()):
            os.kill(pid, signal.SIGKILL)


def goes_on(pid: int) -> bool:
    """Return whether a process that is nobody's child here runs, or is stopped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # whose new parent has not asked how it ended


def children_of(parent: int) -> dict[str, int]:
    """Return the processes of a run, by what they are."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if int(status[1]) == parent and "anabranch" in command:
            kind, name = command[command.index("anabranch") + 1], command[-2]
            found["the scheduler" if kind == "host" else f"site {name}"] = int(folder.name)
    return found


@pytest.mark.slow
def test_a_survivor_that_does_not_hear_is_ended_too(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    killer = Killer("site site1", log)

    def tick() -> None:
        if not killer.killed and killer.rounds_done() > 2:
            os.kill(killer.pids["site site2"], signal.SIGSTOP)
        killer.tick()

    with pytest.raises(RunAborted, match=r"site 1 \(site1\) died"):
        run_locally(
            scenario(rounds=100_000), 0, OVERLAY, log, on_tick=tick, on_started=killer.started
        )
    assert killer.killed
    assert not any(map(is_alive, killer.pids.values()))


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_is_named(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"

    def started(pids: dict[str, int]) -> None:
        resource.prlimit(pids["the scheduler"], resource.RLIMIT_FSIZE, (200_000, 200_000))

    with pytest.raises(RunAborted, match=r"run\.db cannot be written: .*; make room there"):
        run_locally(scenario(rounds=100_000), 0, OVERLAY, log, on_started=started)
    assert summarise(event for _, event in read_events(log)).rounds


@pytest.mark.slow
def test_a_log_that_is_removed_ends_the_run_and_is_named(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "run.db"
    log.parent.mkdir()

    def tick() -> None:
        with suppress(ValueError):  # the scheduler is just creating it
            if log.exists() and len(list(read_events(log))) > 20:
                shutil.rmtree(log.parent)

    with pytest.raises(RunAborted, match=r"run\.db was removed while it was written"):
        run_locally(scenario(rounds=100_000), 0, OVERLAY, log, on_tick=tick)


@pytest.mark.slow
def test_an_interrupt_of_the_scheduler_ends_every_process(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    killer = Killer("the scheduler", log, signal.SIGTERM)
    with pytest.raises(RunAborted, match="interrupted"):
        run_locally(
            scenario(rounds=100_000),
            0,
            OVERLAY,
            log,
            on_tick=killer.tick,
            on_started=killer.started,
        )
    assert not any(map(is_alive, killer.pids.values()))


NO_SHARD = """
import numpy as np

class Work:
    def __init__(self):
        self.buffer = np.zeros(3, np.float32)

    def local_step(self, samples): ...

    def apply(self, round): ...

    def evaluate(self):
        return None

    def state_dict(self):
        return {"model": {"all": self.buffer}}

    def load_state_dict(self, state): ...

def make(context):
    if context.site == 1:
        raise LookupError("no shard for this site")
    return Work()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_site_that_cannot_begin_says_why(scenario: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NO_SHARD)
    task = 'kind = "own"\nfactory = "mine:make"\nfolder = "."\nbatch_size = 1'
    with pytest.raises(RunAborted, match=r"site 1 \(site1\) failed: .*no shard for this site"):
        run_locally(scenario(task=task), 0, OVERLAY, tmp_path / "run.db")


@pytest.mark.slow
def test_no_process_outlives_a_launcher_that_is_interrupted(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from anabranch_lab.run.launch import run_locally\n"
        "from anabranch_lab.run.scenario import load\n"
        "path = Path(sys.argv[1])\n"
        "run_locally(path, 0, load(path)[1], Path(sys.argv[2]),\n"
        "            on_started=lambda pids: print(*pids.values(), flush=True))\n"
    )
    path = scenario(rounds=100_000)
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "run.db")]
    pids: list[int] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        assert launcher.stdout is not None
        try:
            pids += [int(pid) for pid in launcher.stdout.readline().split()]
            assert len(pids) == 4
            launcher.send_signal(signal.SIGINT)
            launcher.wait()
            while any(map(goes_on, pids)):  # some have yet to import what they need
                time.sleep(0.05)
        finally:
            launcher.kill()
            for pid in filter(goes_on, pids):
                os.kill(pid, signal.SIGKILL)


SIX = random_complete(6, 0, low_bps=50e6, high_bps=100e6, latency_s=0.01)
# A step takes 0.1 s, and a round not much more while all links are whole. Of fifteen pairs of sites
# two are out at a time, on average; and for four seconds no link joins the two halves.
OUTAGES = """
overlay = "overlay.toml"
stop.rounds = 30
chunk_elements = 512
route.kind = "fapt"
wait_s = 60
[task]
kind = "train"
data = "digits"
model = "softmax"
learning_rate = 0.5
batch_size = 64
evaluate_every = 10
[compute]
samples_per_s = 640
[[fault]]
kind = "outages"
all = true
up_s = 12
down_s = 2
until_s = 10
[[fault]]
kind = "partition"
groups = [["site0", "site1", "site2"], ["site3", "site4", "site5"]]
at_s = 1
for_s = 4
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_six_processes_train_through_outages_and_a_partition_that_heals_as_simulated_ones_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "overlay.toml").write_text(dumps(SIX))
    path = tmp_path / "scenario.toml"
    path.write_text(OUTAGES)
    simulate(*load(path), tmp_path / "simulated.db")
    run_locally(path, 0, SIX, tmp_path / "measured.db")
    runs = [
        summarise(event for _, event in read_events(tmp_path / f"{name}.db"))
        for name in ("simulated", "measured")
    ]
    for run in runs:
        assert run.error is None
        assert [done.round for done in run.rounds] == list(range(1, 31))
        assert run.checked_rounds == 30
        assert run.checksums_agree
        assert not run.lost
        assert run.total_s > 5.0  # the partition ended
        assert max(done.seconds for done in run.rounds) > 1.0  # a round waited for it
        [begins, ends] = [fault for fault in run.faults if fault.fault == "partition"]
        assert (begins.over, ends.over) == (False, True)
    # The same outages, in the same order of moments; the longer run may see more of them.
    simulated, measured = (
        [each.detail for each in run.faults if each.fault == "outages" and not each.over]
        for run in runs
    )
    common = min(len(simulated), len(measured))
    assert common >= 3
    assert simulated[:common] == measured[:common]


@pytest.mark.slow
def test_a_process_that_sleeps_now_and_then_is_waited_for(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    path = scenario(rounds=100_000)
    text = path.read_text()
    assert text.count("rounds = 100000") == 1
    path.write_text(
        text.replace("rounds = 100000", "rounds = 100000, after_s = 4.0")
        + '[[fault]]\nkind = "sleep"\nsite = "site1"\nawake_s = 0.3\nasleep_s = 0.7\n'
        'distribution = "fixed"\nuntil_s = 3.0\n'
    )
    log = tmp_path / "run.db"
    run_locally(path, 0, OVERLAY, log)
    run = summarise(event for _, event in read_events(log))
    assert run.error is None
    assert run.rounds
    assert run.checksums_agree
    begins, ends = ([each for each in run.faults if each.over == over] for over in (False, True))
    assert len(begins) == len(ends) >= 1  # three, where the run begins and goes on at once
    assert {each.detail for each in run.faults} == {"sleep of site1 for 0.7 s"}
    assert max(done.seconds for done in run.rounds) > 0.5  # it really stood still


@pytest.mark.slow
def test_a_process_that_a_script_kills_ends_the_run_and_is_named(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    path = scenario(rounds=100_000)
    path.write_text(path.read_text() + '[[fault]]\nkind = "kill"\nsite = "site1"\nat_s = 0.5\n')
    with pytest.raises(RunAborted, match=r"site 1 \(site1\) died in round"):
        run_locally(path, 0, OVERLAY, tmp_path / "run.db")


@pytest.mark.slow
def test_a_link_that_is_cut_for_longer_than_it_is_waited_for_ends_the_run_and_is_named(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    path = scenario(rounds=100_000, top="wait_s = 2\n")
    cut = 'kind = "cut"\npair = ["site0", "site1"]\nat_s = 0.5\n'
    path.write_text(f"{path.read_text()}[[fault]]\n{cut}")
    with pytest.raises(RunAborted, match=r"the lane from .* ended, .* said nothing for"):
        run_locally(path, 0, OVERLAY, tmp_path / "run.db")


@emulates
def test_an_emulated_run_knows_that_its_links_were_held(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    run_locally(scenario(), 0, OVERLAY, log, emulate=True)
    run = summarise(event for _, event in read_events(log))
    assert (run.started.world, run.started.shaped) == ("emulated", True)
    assert [done.round for done in run.rounds] == [1, 2, 3, 4, 5]
    assert run.checksums_agree
    assert run.error is None


@emulates
def test_an_emulated_run_keeps_the_caps_of_ports_and_the_time_of_traces(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    # Two sites' 400 kbit take a tenth of a second through the hub's port, and once its links have
    # slowed down, each site's take four tenths of one.
    trace = Trace((0.0, 0.3), (80e6, 1e6))
    sites = (Site("hub", uplink_bps=8e6, downlink_bps=8e6), Site("a"), Site("b"))
    pairs = ((0, 1), (1, 0), (0, 2), (2, 0))
    overlay = Overlay("caps", sites, tuple(Link(*pair, 80e6, trace=trace) for pair in pairs))
    path = scenario(rounds=14, task='kind = "exchange"\nelements = 12_500')
    (tmp_path / "overlay.toml").write_text(dumps(overlay))
    path.write_text(path.read_text().replace('kind = "fapt"', 'kind = "star"\nhub = "hub"'))
    for attempt in range(3):  # other work may hold the first round up
        log = tmp_path / f"run-{attempt}.db"
        run_locally(path, 0, overlay, log, emulate=True)
        first, *_, last = rounds = summarise(event for _, event in read_events(log)).rounds
        # One that is heard of late looks short itself, or makes the next look so: eight together.
        late_s = (last.at_s - rounds[-9].at_s) / 8
        assert first.seconds > 0.1
        assert late_s > 0.25  # without the trace a tenth
        if first.seconds < late_s:
            break
    assert first.seconds < late_s


@emulates
def test_a_relay_that_dies_ends_the_run_and_is_named(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    log = tmp_path / "run.db"
    found: dict[str, int] = {}

    def tick() -> None:
        # Of this process's children, the one that is none of the run's.
        for each in Path("/proc/self/task").glob("*/children"):
            for child in map(int, each.read_text().split()):
                words = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"anabranch_lab.emulate._relay" in words and log.exists() and not found:
                    found["relay"] = child
                    os.kill(child, signal.SIGKILL)

    with pytest.raises(RunAborted, match="the relay between the sites has ended"):
        run_locally(scenario(rounds=100_000), 0, OVERLAY, log, on_tick=tick, emulate=True)
    assert found
    assert not list(Path("/run/netns").glob(f"anabranch-{os.getpid()}-*"))


def test_a_scenario_names_its_overlay_from_its_own_folder(scenario: Callable[..., Path]) -> None:
    loaded, overlay = load(scenario())
    assert loaded.stop.rounds == 5
    assert isinstance(overlay, Overlay)
    assert overlay == OVERLAY
