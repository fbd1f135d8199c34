"""The files of examples/deploy: each is well formed, and starts what is there.

No cluster is needed: what Slurm and Kubernetes do, which is to start processes with some variables
set, is done here.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

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


@contextmanager
def processes(commands: Mapping[str, tuple[list[str], dict[str, str]]]) -> Iterator[dict[str, str]]:
    """Run commands, each with its environment, to their ends; yields what each has printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANABRANCH_", "SLURM"))}
    running = {
        name: subprocess.Popen(
            command,
            env={**clean, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, (command, environment) in commands.items()
    }
    try:
        printed = {}
        for name, process in running.items():
            out, err = process.communicate(timeout=90)
            assert process.returncode == 0, f"{name}: {err}"
            printed[name] = out
        yield printed
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


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
        told = {**clean, "OMP_NUM_THREADS": "1", **environment}
        self.ended[name], self.codes[name] = threading.Event(), []

        def keep_running() -> None:
            while not self._is_over:
                with (self.folder / name).open("ab") as output:
                    process = subprocess.Popen(command, env=told, stdout=output, stderr=output)
                self._running[name] = process
                self.codes[name].append(process.wait())
                if self.codes[name][-1] == 0:
                    self.ended[name].set()
                    return
                time.sleep(0.2)

        threading.Thread(target=keep_running, daemon=True).start()

    def kill(self, name: str) -> None:
        """Kill a program's present process."""
        self._running[name].kill()

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
            process.kill()
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


def program_of_the_docs() -> str:
    """Return the example of local steps, as a program for each site."""
    text = (ROOT / "docs" / "local-steps.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (example,) = [each for each in examples if "group.average(" in each]
    train, found, _ = example.partition("with anabranch.local(2)")
    assert found
    assert train.count("average.begun < 10:") == 1
    longer = train.replace("average.begun < 10:", "average.begun < 2000:")
    return f"""{longer}
with anabranch.join() as group:
    weights = train(group).tolist()
    print(f"{{group.site}}: {{weights}} with {{group.size}} sites", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["train.py", "local steps"])
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
    path = DEPLOY / "train.py"
    if program == "local steps":
        path = tmp_path / "local_steps.py"
        path.write_text(program_of_the_docs(), "utf-8")
    for site in sites:
        environment = {
            **variables("anabranch-site@.service", site),
            "ANABRANCH_PORT": "0",
            "ANABRANCH_TLS": str(certificates),
            "ANABRANCH_TOKEN": "secret",
            "ANABRANCH_SCHEDULER": f"127.0.0.1:{port}",
            "ANABRANCH_ADVERTISE": "127.0.0.1",
            "STEPS": "5000",
        }
        supervisor.start(site, [sys.executable, str(path)], environment)
    supervisor.await_said("scheduler", "exchanges=[1-9]")
    for times, lost in enumerate(("tokyo", "paris"), 1):  # the last of the overlay, and the first
        supervisor.kill(lost)
        # Until then a scheduler that was started again would let it join once more.
        supervisor.await_said("scheduler", "event=in_step", times)
    supervisor.kill("scheduler")
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


def test_the_batch_script_is_one_of_bash() -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / "train.sbatch")], check=True, timeout=30)
    text = (DEPLOY / "train.sbatch").read_text("utf-8")
    [line] = re.findall(r"^anabranch (.*(?:\\\n.*)*) &$", text, re.MULTILINE)
    assert_command(shlex.split(line.replace("\\\n", " ").replace("$ANABRANCH_SCHEDULER", "h:7700")))
    assert "\n#SBATCH" not in text.partition("set -euo")[2]  # Slurm reads none after a command


SRUN = """#!/bin/bash
# What srun does, as far as the script needs it: a process for each task, told which it is.
[ "$1" = --kill-on-bad-exit=0 ] && shift
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task SLURMD_NODENAME=localhost "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""


@pytest.mark.slow
def test_tasks_of_slurm_find_their_scheduler_and_train(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    for name, module in (("anabranch", "-m anabranch"), ("python", "")):
        (programs / name).write_text(f'#!/bin/bash\nexec "{sys.executable}" {module} "$@"\n')
    for program in programs.iterdir():
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "17",
        "SLURMD_NODENAME": "localhost",
        "PORT": str(free_port()),
        "STEPS": "20",
        "TRAIN": str(DEPLOY / "train.py"),
    }
    text = (DEPLOY / "train.sbatch").read_text("utf-8")
    assert text.count("--insecure \\\n") == 1
    batch = tmp_path / "train.sbatch"  # however busy this machine is, no site is to seem lost
    batch.write_text(text.replace("--insecure \\\n", "--insecure --silence 30 \\\n"), "utf-8")
    script = f'cd "{tmp_path}" && exec bash "{batch}"'
    with processes({"batch": (["bash", "-c", script], environment)}) as printed:
        assert sorted(re.findall(r"(site\d): 20 steps with 2 sites", printed["batch"])) == [
            "site0",
            "site1",
        ]
    assert (tmp_path / "anabranch-17.db").exists()


# --- Kubernetes


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))


def job(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Job's spec and its container."""
    [spec] = [each["spec"] for each in objects() if each["metadata"]["name"] == name != "anabranch"]
    [container] = spec["template"]["spec"]["containers"]
    return spec, container


@pytest.mark.parametrize("release", ["1.28", kubernetes_validate.latest_version()])
def test_objects_have_the_form_that_kubernetes_asks_for(release: str) -> None:
    found = objects()
    assert [each["kind"] for each in found] == ["ConfigMap", "Service", "Job", "Job"]
    for each in found:
        kubernetes_validate.validate(each, release, strict=True)
    found[3]["spec"]["template"]["spec"]["contaners"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="'contaners' was unexpected"):
        kubernetes_validate.validate(found[3], release, strict=True)


def test_the_objects_of_kubernetes_fit_one_another() -> None:
    settings, service, *_ = objects()
    scheduler_spec, scheduler_container = job("anabranch-scheduler")
    train_spec, _ = job("train")
    names = settings["data"]["ANABRANCH_SITES"].split(",")
    assert train_spec["completionMode"] == "Indexed"
    assert train_spec["completions"] == train_spec["parallelism"] == len(names)
    host, _, port = settings["data"]["ANABRANCH_SCHEDULER"].partition(":")
    pod = scheduler_spec["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"  # headless
    assert host == f"{pod['hostname']}.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    labels = scheduler_spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    ports = {each["containerPort"] for each in scheduler_container["ports"]}
    assert ports == {each["port"] for each in service["spec"]["ports"]} >= {int(port)}
    for spec in (scheduler_spec, train_spec):
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        mounts = {each["name"] for each in container["volumeMounts"]}
        assert mounts == {each["name"] for each in pod["volumes"]}
        assert pod["restartPolicy"] in ("OnFailure", "Never")  # a Job's choice
    assert_command([expand(each, settings["data"]) for each in scheduler_container["args"]])


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Do what Kubernetes does with $(NAME) in commands."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


@pytest.mark.slow
def test_pods_find_their_scheduler_and_train(tmp_path: Path) -> None:
    settings = objects()[0]["data"]
    port, (_, scheduler), (_, site) = free_port(), job("anabranch-scheduler"), job("train")
    environment = {
        **settings,
        # Of these machines: names with certificates, addresses, and where files are mounted.
        "ANABRANCH_SITES": "a,b",
        "ANABRANCH_SCHEDULER": f"127.0.0.1:{port}",
        "ANABRANCH_TLS": str(CERTIFICATES),
        "ANABRANCH_TOKEN": "secret",
        "STEPS": "20",
    }
    arguments = [expand(each, environment) for each in scheduler["args"]]
    moved = {":7700": f":{port}", ":7701": ":0", "/var/lib/anabranch": str(tmp_path)}
    for was, becomes in moved.items():
        arguments = [each.replace(was, becomes) for each in arguments]
    [advertise] = site["env"]
    assert advertise["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    program, script = site["command"]
    assert (program, Path(script).name) == ("python", "train.py")
    commands = {
        f"train-{index}": (
            [sys.executable, str(DEPLOY / "train.py")],
            {**environment, advertise["name"]: "127.0.0.1", "JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(2)
    }
    arguments.append("--silence=30")  # however busy this machine is, no site is to seem lost
    commands["scheduler"] = ([sys.executable, "-m", "anabranch", *arguments], environment)
    with processes(commands) as printed:
        assert printed["train-0"].startswith("a: 20 steps with 2 sites")
        assert printed["train-1"].startswith("b: 20 steps with 2 sites")


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
            assert "[metrics]" in rest  # kubernetes.yaml starts a scheduler with --metrics
    users = [rest for word, rest in parsed if word == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    pods = [each["spec"]["template"]["spec"] for each in objects() if each["kind"] == "Job"]
    assert {str(pod["securityContext"]["runAsUser"]) for pod in pods} == {users[-1]}
    [script] = re.findall(r"COPY examples/deploy/train.py (\S+)", text)
    assert job("train")[1]["command"][1] == script
    assert script in unit("anabranch-site@.service")["Service"]["ExecStart"]
