"""The public list is the public list."""

from __future__ import annotations

import subprocess
import sys

import pytest

import anabranch
from anabranch import group

from ..every import every


def test_exported_names_are_sorted_and_real() -> None:
    assert anabranch.__all__ == sorted(anabranch.__all__)
    assert every(hasattr(anabranch, name) for name in anabranch.__all__)
    assert dir(anabranch) == anabranch.__all__


def test_nothing_public_is_left_out() -> None:
    rooms = {
        name
        for name, module in sys.modules.items()
        if name.startswith("anabranch.") and module is vars(anabranch).get(name[10:])
    }
    public = {name for name in vars(anabranch) if not name.startswith("_")}
    assert public - {name[10:] for name in rooms} - {"annotations"} <= set(anabranch.__all__)


def test_the_names_of_the_group_are_those_of_the_package() -> None:
    assert group.__all__ == sorted(group.__all__)
    assert set(group.__all__) < set(anabranch.__all__)
    assert every(getattr(anabranch, name) is getattr(group, name) for name in group.__all__)


def test_a_name_that_is_not_exported_is_missed_in_the_usual_way() -> None:
    with pytest.raises(AttributeError, match="module 'anabranch' has no attribute 'Exchange'"):
        _ = anabranch.Exchange  # type: ignore[attr-defined]


def test_importing_loads_nothing_that_is_slow_to_load() -> None:
    code = "import sys, anabranch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "anabranch" in modules
    assert not {"torch", "numpy", "scipy", "asyncio", "socket"} & modules


def test_joining_does_not_load_torch() -> None:
    code = "import sys; from anabranch import join; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()
