"""Scripts of libraries' users over the backend, as torchrun starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXTRAS = {
    "accelerate_digits": {"accelerate": "accelerate"},
    "trainer_bert": {"transformers": "text", "accelerate": "accelerate"},
    "lightning_digits": {"lightning": "lightning"},
}


def test_every_recipe_has_a_test_and_a_line_in_the_list() -> None:
    listed = (ROOT / "examples/README.md").read_text("utf-8")
    recipes = {path.stem for path in ROOT.glob("examples/interop/*.py")}
    assert recipes == set(EXTRAS)
    for name in recipes:
        assert f"](interop/{name}.py)" in listed


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    "name",
    [
        "accelerate_digits",
        pytest.param("lightning_digits", marks=pytest.mark.long),
        pytest.param(
            "trainer_bert",
            marks=pytest.mark.skipif(
                os.geteuid() == 0, reason="test_machines.py runs it on three machines, for root"
            ),
        ),
    ],
)
def test_a_recipe_ends_with_the_same_bits_at_all_ranks_and_a_smaller_loss(name: str) -> None:
    for module, extra in EXTRAS[name].items():
        pytest.importorskip(module, reason=f"needs pip install 'anabranch[{extra}]'")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", str(ROOT / f"examples/interop/{name}.py")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3 ranks, the same bits: True" in done.stdout
    losses = re.findall(r"loss (\d\.\d+)|, (\d\.\d+) in the end", done.stdout)
    first, *_, last = [float(one or other) for one, other in losses]
    assert last < first
