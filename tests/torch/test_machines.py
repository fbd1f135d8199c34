"""Three machines, each a network namespace, train by an unmodified script and torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.net.errors import RunAborted
from anabranch.overlay import Link, Overlay, Site
from anabranch.torch._rendezvous import check_reaches
from anabranch_lab.emulate import emulated
from tests.emulate.sockets import emulates

SCRIPT = Path(__file__).parent.parent.parent / "examples/interop/trainer_bert.py"
SITES = 3
TRIANGLE = Overlay(
    "triangle",
    tuple(Site(f"machine{i}") for i in range(SITES)),
    tuple(Link(i, j, 100e6) for i in range(SITES) for j in range(SITES) if i != j),
)


@emulates
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_hugging_face_model_trains_over_three_machines() -> None:
    pytest.importorskip("transformers", reason="needs pip install 'anabranch[text]'")
    pytest.importorskip("accelerate", reason="needs pip install 'anabranch[accelerate]'")
    with emulated(TRIANGLE) as wan:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(SITES)]
        processes = [
            wan.popen(
                site,
                [
                    *(*torchrun, "--node-rank", str(site), "--nproc-per-node", "1"),
                    *("--master-addr", wan.addresses[0], "--master-port", "29500", str(SCRIPT)),
                ],
                env={**os.environ, "ANABRANCH_INSECURE": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for site in range(SITES)
        ]
        said = [process.communicate(timeout=200)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * SITES, "\n".join(said)
        wan.check()
    assert f"{SITES} ranks, the same bits: True" in said[0]
    losses = re.search(r"held-out loss (\S+) after one epoch, (\S+) in the end", said[0])
    assert losses is not None
    assert float(losses[2]) < float(losses[1])
    for name in ("rank0", "rank1", "rank2"):
        assert re.search(rf"{name} joined from 10\.", said[0]), said[0]


def test_a_scheduler_on_the_loopback_of_rank_0s_machine_is_named_at_the_others() -> None:
    for scheduler, here in (("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.2")):
        check_reaches(scheduler, here)
    with pytest.raises(
        RunAborted, match=r"listens on 127\.0\.0\.1, which only rank 0's own machine"
    ):
        check_reaches("127.0.0.1", "10.0.0.2")
