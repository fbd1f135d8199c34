"""The list of all figures names each experiment once, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from papers import EXPERIMENTS

PAGE = Path(__file__).parents[2] / "docs" / "reproductions" / "every-figure.md"
PAPERS = ("netstorm", "r2sp", "haaf", "intermittent")


def test_each_experiment_of_a_paper_is_in_the_list_and_the_list_has_no_other():
    named = re.findall(rf"`((?:{'|'.join(PAPERS)})/[\w-]+)`", PAGE.read_text("utf-8"))
    assert len(named) == len(set(named))
    assert set(named) == {name for name in EXPERIMENTS if name.partition("/")[0] in PAPERS}
