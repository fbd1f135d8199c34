"""Packages that load their modules late say the same to type checkers and at run time."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
LAZY = [
    path
    for path in sorted(SOURCE.rglob("__init__.py"))
    if "__getattr__, __dir__ = _lazy(" in path.read_text()
]


def test_the_packages_that_clients_import_are_lazy() -> None:
    rooms = {path.parent.name for path in LAZY}
    clients = {"anabranch", "group", "log", "overlay", "period", "plan"}
    assert rooms == clients | {"flower", "reports"}


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_a_lazy_package_has_each_name_where_type_checkers_look_for_it(path: Path) -> None:
    package = ".".join(path.parent.relative_to(SOURCE).parts)
    if path.parent.name == "flower":
        pytest.importorskip("flwr", reason="needs pip install 'anabranch[flower]'")
    tree = ast.parse(path.read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    assert isinstance(branch.test, ast.Name)
    assert branch.test.id == "_TYPE_CHECKING"
    typed = {
        alias.name: node.module.removeprefix(f"{package}.")
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    (table,) = (node for node in ast.walk(branch) if isinstance(node, ast.Dict))
    homes = ast.literal_eval(table)
    assert {name: home for home, names in homes.items() for name in names} == typed
    module = import_module(package)
    assert set(module.__all__) - {"__version__"} == set(typed)
    assert set(dir(module)) == set(module.__all__)
    for name, home in typed.items():
        there = import_module(f"{package}.{home}")
        assert getattr(module, name) is getattr(there, name)


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_a_lazy_package_misses_other_names_in_the_usual_way(path: Path) -> None:
    package = ".".join(path.parent.relative_to(SOURCE).parts)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        _ = import_module(package).Nonsense
