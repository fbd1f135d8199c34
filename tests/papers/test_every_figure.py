"""The list of all figures names each experiment once, and says of each what its page says."""

from __future__ import annotations

import re
from pathlib import Path

from papers import EXPERIMENTS

PAGES = Path(__file__).parents[2] / "docs" / "reproductions"
PAPERS = ("netstorm", "r2sp", "haaf", "intermittent")
NAMES = re.compile(rf"`((?:{'|'.join(PAPERS)})/[\w-]+)`")
# After the heading.
VERDICT = re.compile(r".+\n\n\*\*(Holds|Holds in part|Does not hold|No verdict)\.?\*\*")
WITHOUT_A_CLAIM = re.compile(r"beyond the paper|not in the paper|appendix")


def lines() -> list[str]:
    text = (PAGES / "every-figure.md").read_text("utf-8")
    return [line for line in text.splitlines() if NAMES.search(line)]


def verdicts() -> dict[str, str]:
    """Return what a figure's section begins with, by experiment, where it has been made."""
    found = {}
    for page in PAGES.glob("*.md"):
        for section in page.read_text("utf-8").split("\n## ")[1:]:
            said = VERDICT.match(section)
            for name in re.findall(r"<!-- from results/([\w-]+)\.json", section):
                found[name.replace("-", "/", 1)] = said[1].lower() if said else ""
    return found


def test_each_experiment_of_a_paper_is_in_the_list_and_the_list_has_no_other():
    named = [name for line in lines() for name in NAMES.findall(line)]
    assert len(named) == len(set(named))
    assert set(named) == {name for name in EXPERIMENTS if name.partition("/")[0] in PAPERS}


def test_the_list_says_of_each_figure_whether_its_claim_holds_as_its_page_does():
    said = verdicts()
    for line in lines():
        made = {said[name] for name in NAMES.findall(line) if name in said}
        here = line.split("|")[-2].strip()
        if not made:
            assert here == "to come", line
        elif WITHOUT_A_CLAIM.search(line):
            assert here == "", line
        else:
            assert {here} == made, line
