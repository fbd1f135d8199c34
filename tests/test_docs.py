"""What the documents point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_named_in_passing_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = (ROOT, ROOT / "src" / "anabranch", page.parent)
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|toml|json))`", text):
        assert any((place / name).exists() for place in places), name
