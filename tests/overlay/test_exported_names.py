"""The public list is the public list."""

import subprocess
import sys

from anabranch import overlay

from ..every import every


def test_exported_names_are_sorted_and_real():
    assert overlay.__all__ == sorted(overlay.__all__)
    assert every(hasattr(overlay, name) for name in overlay.__all__)
    public = {name for name in vars(overlay) if not name.startswith("_")}
    assert public == set(overlay.__all__)


def test_importing_does_not_import_what_only_graph_files_need():
    code = "import sys, anabranch.overlay; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "anabranch.overlay" in modules
    assert not {"networkx", "torch", "asyncio", "socket"} & modules
