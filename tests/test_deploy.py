"""The files of examples/deploy: each is well formed, starts what is there, and starts it again.

No cluster is needed: what Slurm and Kubernetes do, which is to start processes with some variables
set, is done here.
"""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from anabranch_lab.cli import app

from .every import every

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "examples" / "deploy"
CERTIFICATES = Path(__file__).parent / "net" / "certs" / "ours"  # of sites a and b
ANABRANCH = str(Path(sys.executable).with_name("anabranch"))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def assert_command(arguments: list[str]) -> None:
    """Check that a command line of anabranch is one: that it has this command and these options."""
    command = typer.main.get_command(app)
    context = command.make_context("anabranch", [arguments[0], "--help"], resilient_parsing=True)
    sub = command.get_command(context, arguments[0])  # type: ignore[attr-defined]
    assert sub is not None, arguments[0]
    sub.make_context(arguments[0], arguments[1:], parent=context).close()


PACED = """
import runpy, sys, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook

again, hurry = Path({folder!r}, "again"), Path({folder!r}, "hurry")

def wait(*of_a_step):
    if not hurry.exists():
        time.sleep({pace_s})

if not again.exists():  # a process that joins again has to catch up
    register_optimizer_step_post_hook(wait)
runpy.run_path({program!r}, run_name="__main__")
"""


class Paced:
    """A program whose steps take long until a test has killed and seen all that it is to.

    So no test ends before its faults, nor trains for long after them, however fast the machine is.

    Args:
        folder: for files.
        program: the example.
        pace_s: how long a step takes at least, seconds.
    """

    def __init__(self, folder: Path, program: Path, pace_s: float = 0.3) -> None:
        self._folder = folder
        self.path = folder / f"paced_{program.name}"
        text = PACED.format(folder=str(folder), program=str(program), pace_s=pace_s)
        self.path.write_text(text, "utf-8")

    def faults(self) -> None:
        """Processes that start from now on have to catch up."""
        (self._folder / "again").touch()

    def hurry(self) -> None:
        """Make all further steps at once."""
        (self._folder / "hurry").touch()


def descendants(pid: int) -> list[int]:
    """Return a process's children, theirs, and so on, also those with sessions of their own."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def kill_all(pid: int, number: int = signal.SIGKILL) -> None:
    """Do what ends a container: a signal to a process, and the end of all that it has started."""
    others = descendants(pid)
    for each in (pid, *others):
        with suppress(ProcessLookupError):
            os.kill(each, number)


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8").split("\0")
    except OSError:
        return []


def told(pid: int) -> dict[str, str]:
    """Return the environment of a process; none where it is gone."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_text("utf-8").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


class Supervisor:
    """Keeps programs running as systemd and Kubernetes do: each that fails is started again.

    Args:
        folder: where each program's output goes, to a file of its name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended: dict[str, threading.Event] = {}
        self.codes: dict[str, list[int]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_over = False

    def start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a program, and start it again until it ends well."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANABRANCH_", "SLURM"))}
        variables = {**clean, **environment}
        self.ended[name], self.codes[name] = threading.Event(), []
        (self.folder / name).touch()

        def keep_running() -> None:
            while not self._is_over:
                with (self.folder / name).open("ab") as output:
                    process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
                self._running[name] = process
                self.codes[name].append(process.wait())
                if self.codes[name][-1] == 0:
                    self.ended[name].set()
                    return
                time.sleep(0.2)

        threading.Thread(target=keep_running, daemon=True).start()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a program's present process, and those that it has started."""
        kill_all(self.pid(name), number)

    def pid(self, name: str) -> int:
        """Return a program's present process."""
        return self._running[name].pid

    def said(self, name: str) -> str:
        """Return what a program has printed so far, in all its processes."""
        return (self.folder / name).read_text("utf-8")

    def await_said(self, name: str, pattern: str, times: int = 1) -> None:
        """Wait until a program has printed something so often."""
        until_s = time.monotonic() + 120.0
        while len(re.findall(pattern, self.said(name))) < times:
            assert time.monotonic() < until_s, self.everything()
            assert not self.ended[name].is_set(), self.everything()
            time.sleep(0.1)

    def everything(self) -> str:
        """Return all that was printed, for a test that fails."""
        return "\n".join(f"--- {name} {self.codes[name]}\n{self.said(name)}" for name in self.codes)

    def end(self) -> None:
        """End all programs."""
        self._is_over = True
        for process in self._running.values():
            kill_all(process.pid)
            process.wait()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """Return what keeps programs running; all end with the test."""
    folder = tmp_path / "said"
    folder.mkdir()
    keeps = Supervisor(folder)
    yield keeps
    keeps.end()


# --- systemd

UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))


class _Several(dict[str, Any]):
    """Keeps all values of a key that is given more than once, a line each."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            value = [*self[key], *value]
        super().__setitem__(key, value)


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, dict_type=_Several)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / name)
    return parser


def test_there_are_units_for_a_scheduler_and_a_site() -> None:
    assert UNITS == ["anabranch-scheduler.service", "anabranch-site@.service"]


def test_the_schedulers_unit_starts_a_scheduler_with_options_that_are_there() -> None:
    program, *arguments = shlex.split(unit("anabranch-scheduler.service")["Service"]["ExecStart"])
    assert program == "/opt/anabranch/bin/anabranch"
    assert_command(arguments)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_a_unit(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    for program in re.findall(r"/opt/anabranch/bin/\w+", text):
        text = text.replace(program, sys.executable)  # it is checked whether that is there
    verified = tmp_path / name
    verified.write_text(text, "utf-8")
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(verified)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert name not in done.stderr, done.stderr  # unknown keys are only warned of


def variables(name: str, instance: str) -> dict[str, str]:
    """Return the environment that a unit sets."""
    text = unit(name)["Service"]["Environment"].replace("%i", instance)
    return dict(each.split("=", 1) for each in shlex.split(text))


def site_file() -> dict[str, str]:
    """Return what a site's unit says is in its machine's file of variables."""
    text = (DEPLOY / "anabranch-site@.service").read_text("utf-8")
    return dict(re.findall(r"^#     (ANABRANCH_\w+)=(.*)$", text, re.MULTILINE))


def test_the_page_has_the_variables_of_the_units_and_of_no_other_port() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    found = dict(re.findall(r"^(ANABRANCH_\w+)=(\S*)$", page, re.MULTILINE))
    assert found.keys() == site_file().keys()
    assert found["ANABRANCH_PORT"] == site_file()["ANABRANCH_PORT"]
    assert found["ANABRANCH_SCHEDULER"] == site_file()["ANABRANCH_SCHEDULER"]
    listens = unit("anabranch-scheduler.service")["Service"]["ExecStart"]
    assert f":{found['ANABRANCH_SCHEDULER'].partition(':')[2]} " in listens
    assert unit("anabranch-site@.service")["Service"]["EnvironmentFile"] in page


def program_of_the_docs() -> str:
    """Return the example of local steps, as a program for each site."""
    text = (ROOT / "docs" / "local-steps.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (example,) = [each for each in examples if "group.average(" in each]
    train, found, _ = example.partition("with anabranch.local(2)")
    assert found
    assert train.count("average.begun < 10:") == 1
    longer = train.replace("average.begun < 10:", "average.begun < 200:")
    return f"""{longer}
with anabranch.join() as group:
    weights = train(group).tolist()
    print(f"{{group.site}}: {{weights}} with {{group.size}} sites", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "program", ["train.py", pytest.param("local steps", marks=pytest.mark.long)]
)
def test_a_site_and_the_scheduler_that_are_killed_are_started_again_and_go_on(
    program: str, supervisor: Supervisor, tmp_path: Path
) -> None:
    sites, port, certificates = ("paris", "austin", "tokyo"), free_port(), tmp_path / "certs"
    made = ["certs", "--sites", ",".join(sites), "--out", str(certificates)]
    subprocess.run([sys.executable, "-m", "anabranch", *made], check=True, timeout=60)
    moved = {
        "0.0.0.0:7700": f"127.0.0.1:{port}",
        "/etc/anabranch": str(certificates),
        "/var/lib/anabranch": str(tmp_path),
        "--metrics 7701": "--metrics 0",
    }
    started = unit("anabranch-scheduler.service")["Service"]["ExecStart"]
    for was, becomes in moved.items():
        assert was in started
        started = started.replace(was, becomes)
    _, *arguments = shlex.split(started)
    supervisor.start(
        "scheduler",
        # However busy this machine is, no site is to seem lost but by its end.
        [sys.executable, "-m", "anabranch", *arguments, "--silence=30", "--progress-every=0.5"],
        {"ANABRANCH_TOKEN": "secret"},
    )
    _, script = shlex.split(unit("anabranch-site@.service")["Service"]["ExecStart"])
    assert Path(script).name == "train.py"
    paced = Paced(tmp_path, DEPLOY / "train.py")
    if program == "local steps":
        path = tmp_path / "local_steps.py"
        path.write_text(program_of_the_docs(), "utf-8")
        paced = Paced(tmp_path, path, pace_s=0.05)
    for site in sites:
        environment = {
            **variables("anabranch-site@.service", site),
            **site_file(),
            "ANABRANCH_PORT": "0",
            "ANABRANCH_TLS": str(certificates),
            "ANABRANCH_TOKEN": "secret",
            "ANABRANCH_SCHEDULER": f"127.0.0.1:{port}",
            "ANABRANCH_ADVERTISE": "127.0.0.1",
            "STEPS": "1000",
        }
        supervisor.start(site, [sys.executable, str(paced.path)], environment)
    supervisor.await_said("scheduler", "exchanges=[1-9]")
    paced.faults()
    for times, lost in enumerate(("tokyo", "paris"), 1):  # the last of the overlay, and the first
        supervisor.kill(lost)
        # Until then a scheduler that was started again would let it join once more.
        supervisor.await_said("scheduler", "event=in_step", times)
    supervisor.kill("scheduler")
    supervisor.await_said("scheduler", "event=restarted")
    paced.hurry()
    ends = [supervisor.ended[name].wait(400) for name in (*sites, "scheduler")]
    assert every(ends), supervisor.everything()
    assert supervisor.codes == {
        "paris": [-9, 0],
        "austin": [0],
        "tokyo": [-9, 0],
        "scheduler": [-9, 0],
    }, supervisor.everything()
    results = [supervisor.said(site).splitlines()[-1].partition(": ") for site in sites]
    assert [name for name, _, _ in results] == [*sites]
    assert every(
        result.endswith(" with 3 sites") or "with 3 sites," in result for *_, result in results
    )


# --- Slurm


def batch() -> str:
    return (DEPLOY / "train.sbatch").read_text("utf-8")


def test_the_batch_script_is_one_of_bash() -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / "train.sbatch")], check=True, timeout=30)
    [line] = re.findall(r"^ *anabranch (.*\\\n.*) \|\| status", batch(), re.MULTILINE)
    assert_command(shlex.split(line.replace("\\\n", " ").replace("$ANABRANCH_SCHEDULER", "h:7700")))
    head, _, commands = batch().partition("set -euo")
    assert "\n#SBATCH" not in commands  # Slurm reads none after a command
    assert re.search(r"^#SBATCH --gres=gpu:\d+$", head, re.MULTILINE)
    assert "SLURM_GPUS_ON_NODE" in commands


SRUN = """#!/bin/bash
# What srun does, as far as the script needs it: a process for each task, told which it is.
while [[ $1 == --* ]]; do
  [[ $1 == --no-kill || $1 == --kill-on-bad-exit=0 ]] || exit 1
  shift
done
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task SLURMD_NODENAME=localhost "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_slurm_trains_with_two_ranks_a_site_and_a_rank_and_the_scheduler_are_started_again(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    for name, module in (("anabranch", "anabranch"), ("torchrun", "torch.distributed.run")):
        (programs / name).write_text(f'#!/bin/bash\nexec "{sys.executable}" -m {module} "$@"\n')
    for program in programs.iterdir():
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    paced = Paced(tmp_path, DEPLOY / "train_gpus.py", pace_s=0.5)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "17",
        "SLURMD_NODENAME": "localhost",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "PORT": str(free_port()),
        "STEPS": "400",
        "TRAIN": str(paced.path),
    }
    assert batch().count("--insecure \\\n") == 1
    # However busy this machine is, no site is to seem lost. One of two that is left goes on.
    options = "--insecure --silence 30 --least-sites 1 --progress-every 0.5 \\\n"
    script = tmp_path / "train.sbatch"
    script.write_text(batch().replace("--insecure \\\n", options), "utf-8")
    command = f'cd "{tmp_path}" && exec bash "{script}"'
    supervisor.start("batch", ["bash", "-c", command], environment)
    supervisor.await_said("batch", "exchanges=[1-9]")
    paced.faults()
    in_batch = descendants(supervisor.pid("batch"))
    [scheduler] = [each for each in in_batch if "anabranch scheduler" in " ".join(command_of(each))]
    ranks = {each: told(each) for each in in_batch}
    # A rank that is not in the group; torchrun then ends the other one of this site, too.
    [rank] = [
        each
        for each, variables in ranks.items()
        if (variables.get("SLURM_PROCID"), variables.get("RANK")) == ("1", "1")
    ]
    os.kill(rank, signal.SIGKILL)
    supervisor.await_said("batch", "event=in_step")
    os.kill(scheduler, signal.SIGKILL)
    supervisor.await_said("batch", "event=restarted")
    paced.hurry()
    assert supervisor.ended["batch"].wait(200), supervisor.everything()
    assert supervisor.codes == {"batch": [0]}, supervisor.everything()
    ends = r"(site\d): 400 steps with 2 sites, this one of 2 ranks on \w+"
    assert sorted(re.findall(ends, supervisor.said("batch"))) == ["site0", "site1"]
    assert len(list(tmp_path.glob("anabranch-17-0*.db"))) == 2  # of the scheduler's two processes


# --- Kubernetes

MANIFESTS = "kubernetes-scheduler.yaml", "kubernetes-site.yaml"


def objects(name: str, site: str = "paris") -> list[dict[str, Any]]:
    """Return a file's objects, for a site as its first lines say how."""
    text = (DEPLOY / name).read_text("utf-8")
    return list(yaml.safe_load_all(text.replace("paris", site)))


def only(kind: str, name: str, site: str = "paris") -> dict[str, Any]:
    """Return a file's one object of a kind."""
    [found] = [each for each in objects(name, site) if each["kind"] == kind]
    return found


def pod(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a Job's pod is made from, and its container."""
    template = only("Job", name)["spec"]["template"]
    [container] = template["spec"]["containers"]
    return template, container


@pytest.mark.parametrize("release", ["1.28", kubernetes_validate.latest_version()])
def test_objects_have_the_form_that_kubernetes_asks_for(release: str) -> None:
    scheduler, site = map(objects, MANIFESTS)
    assert [each["kind"] for each in scheduler] == ["Service", "PersistentVolumeClaim", "Job"]
    assert [each["kind"] for each in site] == ["ConfigMap", "Service", "Job"]
    for each in (*scheduler, *site):
        kubernetes_validate.validate(each, release, strict=True)
    site[2]["spec"]["template"]["spec"]["contaners"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="'contaners' was unexpected"):
        kubernetes_validate.validate(site[2], release, strict=True)


def test_the_objects_of_kubernetes_fit_one_another() -> None:
    settings = only("ConfigMap", "kubernetes-site.yaml")["data"]
    for name in MANIFESTS:
        template, container = pod(name)
        service = only("Service", name)["spec"]
        assert service["selector"].items() <= template["metadata"]["labels"].items()
        open_ports = {each["containerPort"] for each in container["ports"]}
        assert open_ports >= {each["port"] for each in service["ports"]}
        mounts = {each["name"] for each in container["volumeMounts"]}
        assert mounts == {each["name"] for each in template["spec"]["volumes"]}
        assert template["spec"]["restartPolicy"] in ("OnFailure", "Never")  # a Job's choice
        # A secret has what this one process needs, and no other's key.
        identity = "scheduler" if "scheduler" in name else "site-paris"
        head = (DEPLOY / name).read_text("utf-8").partition("apiVersion")[0]
        given = re.findall(r"--from-file=certs/(\S+)", head)
        assert given == ["ca.pem", f"{identity}.pem", f"{identity}.key"]
    template, container = pod("kubernetes-scheduler.yaml")
    assert_command(container["args"])
    [sites] = [each for each in container["args"] if each.startswith("--sites=")]
    assert settings["ANABRANCH_SITE"] in sites.removeprefix("--sites=").split(",")
    # The journal is where another node finds it.
    [state] = [each for each in template["spec"]["volumes"] if each["name"] == "state"]
    claim = only("PersistentVolumeClaim", "kubernetes-scheduler.yaml")["metadata"]["name"]
    assert state["persistentVolumeClaim"]["claimName"] == claim
    [place] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "state"]
    assert f"--journal={place}/journal" in container["args"]
    ports = {each["port"] for each in only("Service", "kubernetes-scheduler.yaml")["spec"]["ports"]}
    assert ports == {int(settings["ANABRANCH_SCHEDULER"].partition(":")[2])}  # and no metrics
    ports = {each["port"] for each in only("Service", "kubernetes-site.yaml")["spec"]["ports"]}
    assert ports == {int(settings["ANABRANCH_PORT"])}
    _, site = pod("kubernetes-site.yaml")
    assert str(site["resources"]["limits"]["nvidia.com/gpu"]) == settings["RANKS"]


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Do what Kubernetes does with $(NAME) in commands."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_site_s_pod_and_the_scheduler_s_are_ended_and_others_take_their_places(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    port, sites = free_port(), ("a", "b")
    for identity in ("scheduler", *(f"site-{each}" for each in sites)):  # a secret each
        (tmp_path / identity).mkdir()
        for file in ("ca.pem", f"{identity}.pem", f"{identity}.key"):
            shutil.copy(CERTIFICATES / file, tmp_path / identity)
    moved = {
        "--sites=paris,austin,tokyo": "--sites=a,b",
        "0.0.0.0:7700": f"127.0.0.1:{port}",
        "0.0.0.0:7701": "0",
        "/etc/anabranch": str(tmp_path / "scheduler"),
        "/var/lib/anabranch": str(tmp_path),
    }
    arguments = "\n".join(pod("kubernetes-scheduler.yaml")[1]["args"])
    for was, becomes in moved.items():
        assert was in arguments
        arguments = arguments.replace(was, becomes)
    # However busy this machine is, no site is to seem lost. One of two that is left goes on.
    command = [sys.executable, "-m", "anabranch", *arguments.splitlines(), "--progress-every=0.5"]
    token = {"ANABRANCH_TOKEN": "secret"}
    supervisor.start("scheduler", [*command, "--silence=30", "--least-sites=1"], token)
    paced = Paced(tmp_path, DEPLOY / "train_gpus.py", pace_s=0.5)
    for site in sites:
        settings = {
            **only("ConfigMap", "kubernetes-site.yaml", site)["data"],
            **token,
            "ANABRANCH_SCHEDULER": f"127.0.0.1:{port}",
            "ANABRANCH_ADVERTISE": "127.0.0.1",
            "ANABRANCH_PORT": "0",
            "ANABRANCH_TLS": str(tmp_path / f"site-{site}"),
            "RANKS": "1",
            "STEPS": "400",
        }
        program, *options, script = pod("kubernetes-site.yaml")[1]["command"]
        assert (program, script) == ("torchrun", "/opt/anabranch/train_gpus.py")
        expanded = [expand(each, settings) for each in options]
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        supervisor.start(site, [*torchrun, *expanded, str(paced.path)], settings)
    supervisor.await_said("scheduler", "exchanges=[1-9]")
    paced.faults()
    supervisor.kill("b")
    supervisor.await_said("scheduler", "event=in_step")
    supervisor.kill("scheduler", signal.SIGTERM)  # as where its node is drained
    supervisor.await_said("scheduler", "event=restarted")
    paced.hurry()
    ends = [supervisor.ended[name].wait(200) for name in (*sites, "scheduler")]
    assert every(ends), supervisor.everything()
    codes = {"scheduler": [143, 0], "a": [0], "b": [-9, 0]}
    assert supervisor.codes == codes, supervisor.everything()
    for site in sites:
        assert f"{site}: 400 steps with 2 sites, this one of 1 ranks" in supervisor.said(site)


# --- Docker

INSTRUCTIONS = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}


def test_the_dockerfile_is_one_and_copies_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    parsed = [tuple(line.split(None, 1)) for line in lines if line.strip()]
    words = [word for word, _ in parsed]
    assert set(words) <= INSTRUCTIONS
    assert words[0] == "FROM"
    stages = []
    for word, rest in parsed:
        if word == "FROM":
            image, *name = rest.split()
            assert ":" in image
            assert not image.endswith(":latest")
            stages += name[1:]
        elif word == "COPY":
            *sources, _ = [each for each in rest.split() if not each.startswith("--")]
            origin = re.search(r"--from=(\S+)", rest)
            if origin is None:
                assert every((ROOT / source).exists() for source in sources), sources
            else:
                assert origin[1] in stages
        elif word in ("ENTRYPOINT", "CMD"):
            assert re.fullmatch(r'\["[^"]+"(, "[^"]+")*\]', rest)  # no shell between it and signals
        elif word == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
    users = [rest for word, rest in parsed if word == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    for name in MANIFESTS:
        assert str(pod(name)[0]["spec"]["securityContext"]["runAsUser"]) == users[-1]
    [copied] = re.findall(r"COPY examples/deploy/(.*) (\S+)/$", text, re.MULTILINE)
    scripts = [f"{copied[1]}/{Path(each).name}" for each in copied[0].split()]
    assert pod("kubernetes-site.yaml")[1]["command"][-1] in scripts
    assert unit("anabranch-site@.service")["Service"]["ExecStart"].split()[-1] in scripts


def in_context(path: Path) -> bool:
    """Return whether Docker sends a file of the repository: the last pattern that fits says."""
    sent, whole = True, path.relative_to(ROOT)
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        each_way = [whole, *whole.parents] if "**/" not in line else map(Path, whole.parts)
        if any(fnmatch.fnmatchcase(str(each), pattern) for each in each_way):
            sent = line.startswith("!")
    return sent


@pytest.mark.slow
def test_docker_is_sent_what_its_file_copies_and_no_more() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    copied = []
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        copied += [ROOT / each for each in line.split()[:-1]]
    wanted = {
        file
        for path in copied
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert wanted
    assert every(in_context(file) for file in wanted)
    there = [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    assert {path for path in there if in_context(path)} == wanted
    for other in (".venv/bin/python", ".git/config", "tests/every.py", "benchmarks/group.py"):
        assert not in_context(ROOT / other)


def test_an_image_has_no_libraries_of_the_lab() -> None:
    [extras] = re.findall(r"'\.\[(.*)\]'", (DEPLOY / "Dockerfile").read_text("utf-8"))
    needed = needs("anabranch", tuple(extras.split(",")))
    assert {"torch", "cryptography", "prometheus-client"} <= needed
    lab = needs("anabranch", ("lab",)) - needs("anabranch")  # torch needs some that the lab needs
    assert lab
    assert not lab & needed
    assert not {"plotly", "pooch", "scikit-learn", "pytest"} & needed


def needs(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Return all packages that pip installs for one, as their metadata say."""
    found: set[str] = set()
    to_look_at = [(name, extras)]
    while to_look_at:
        package, of = to_look_at.pop()
        if package in found:
            continue
        found.add(package)
        for each in map(Requirement, requirements(package, of)):
            if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in ("", *of)):
                to_look_at += [(canonicalize_name(each.name), tuple(each.extras))]
    return found


def requirements(package: str, extras: tuple[str, ...]) -> list[str]:
    """Return what a package says it needs; ours, what this tree's does."""
    if package == "anabranch":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        ours = [each for e in extras for each in project["optional-dependencies"][e]]
        return [*project["dependencies"], *ours]
    try:
        return requires(package) or []
    except PackageNotFoundError:  # for another system
        return []
