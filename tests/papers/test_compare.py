from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from papers._compare import compared, interval, known

from ..parsed import nodes

PAPERS = Path(__file__).parents[2] / "papers"
SCRIPTS = sorted(PAPERS.rglob("*.py"))


def test_times_are_compared_seed_by_seed():
    assert compared([10.0, 10.0], [10.0, 40.0]).startswith("0.500 (")
    assert compared([10.0, 10.0], [20.0, 20.0]) == "0.500 (0.50 to 0.50); sooner in 2 of 2"
    assert compared([10.0, 10.0], [20.0, math.inf]) == "sooner in 2 of 2; in 1 do both reach it"


def test_an_interval_is_students():
    low, high = interval([1.0, 2.0, 3.0, 4.0])
    half = 3.1824 * math.sqrt(5 / 3) / 2  # t of three degrees of freedom
    assert (low, high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-4)


def test_what_no_run_has_measured_is_an_error_and_no_zero():
    assert known(0.0, "blocked_s") == 0.0
    with pytest.raises(ValueError, match="a run has not measured blocked_s"):
        known(None, "blocked_s")


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: str(file.relative_to(PAPERS)))
def test_no_script_reads_what_is_missing_as_zero(file: Path):
    for node in nodes(file):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            last = node.values[-1]
            assert not (isinstance(last, ast.Constant) and last.value == 0), ast.unparse(node)
