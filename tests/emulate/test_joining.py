"""Sites on machines of their own, each a network namespace, that say nothing of where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.emulate import emulated
from tests.emulate.sockets import emulates

TRAIN = Path(__file__).parent.parent.parent / "examples/deploy/train.py"
PAIR = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 100e6), Link(1, 0, 100e6)))


@emulates
@pytest.mark.timeout(240)
def test_sites_that_name_a_scheduler_alone_find_one_another_and_none_offers_its_loopback() -> None:
    with emulated(PAIR) as wan:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANABRANCH_", "SLURM"))}
        environment = {
            **clean,
            "ANABRANCH_TOKEN": "secret",
            "ANABRANCH_INSECURE": "1",
            "STEPS": "5",
        }
        scheduler = wan.popen(
            0,
            [
                *(sys.executable, "-m", "anabranch", "scheduler", "--sites", "a,b"),
                *("--listen", f"{wan.addresses[0]}:0", "--insecure", "--silence", "30"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert scheduler.stdout is not None
        environment["ANABRANCH_SCHEDULER"] = scheduler.stdout.readline().strip()

        def start(site: int, **more: str) -> subprocess.Popen[str]:
            return wan.popen(
                site,
                [sys.executable, str(TRAIN)],
                env={**environment, "ANABRANCH_SITE": "ab"[site], **more},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        hidden = start(1, ANABRANCH_HOST="127.0.0.1")
        _, wrong = hidden.communicate(timeout=100)
        assert hidden.returncode == 1
        assert "ValueError: host is '127.0.0.1', where only this machine's own processes" in wrong
        sites = [start(0), start(1)]
        said = [site.communicate(timeout=100) for site in sites]
        assert [site.returncode for site in sites] == [0, 0], said
        assert [out.partition(" with ")[0] for out, _ in said] == ["a: 5 steps", "b: 5 steps"]
        _, told = scheduler.communicate(timeout=60)
        for name, address in zip("ab", wan.addresses, strict=True):
            assert f"{name} joined from {address}:" in told
        wan.check()
