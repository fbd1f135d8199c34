"""Accelerate's own tests over the backend."""

from __future__ import annotations

import pytest

from tests.torch import accelerate_suite
from tests.torch.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("size", [2, 3])
def test_accelerates_own_scripts_pass_one_after_the_other(size: int) -> None:
    pytest.importorskip("accelerate", reason="needs pip install 'anabranch[accelerate]'")
    assert run_ranks(accelerate_suite.run, size, *accelerate_suite.NAMES) == ["anabranch"] * size
