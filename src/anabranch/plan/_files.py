"""A plan as JSON text: the scheduler sends it to sites, and a user may keep it in a file.

{"version": 3, "label": "star at A", "routes": [[2, 1, 0], [0, 1, 2]],
 "trees": [{"root": 0, "share": 1.0, "up": [-1, 0, 0], "down": [-1, 0, 0]}],
 "auxiliary": [[1, 2, 0]]}

Each pair's auxiliary paths stand fastest first. A plan without such paths has no key "auxiliary". A
plan with groups has the key "groups": [{"workers": [1, 2], "plan": {...}}].
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import msgspec

from anabranch._text import read_text
from anabranch._typed_toml import Table
from anabranch.overlay import Overlay
from anabranch.plan._model import Group, Plan, PlanError, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS


class FromFile(Table, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """A plan from a file.

    Args:
        path: a JSON file, as ``anabranch plan --save`` writes it, relative to the scenario's
            folder. It is read for the first plan of a run only; later plans are the same.
    """

    path: str
    deep: ClassVar[bool] = False
    by_size: ClassVar[bool] = False

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> Plan:
        """See :class:`anabranch.plan.Planner`."""
        if previous is not None:
            return replace(previous, version=version)
        text = read_text(Path(self.path), PlanError)
        try:
            own = loads(text)
        except PlanError as error:
            raise PlanError(f"{self.path}: {error}") from None
        own.check_fits(overlay)
        return replace(own, version=version)


class _TreeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    root: int
    share: float
    up: tuple[int, ...]
    down: tuple[int, ...]


class _PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    label: str
    trees: tuple[_TreeFile, ...]
    routes: tuple[tuple[int, ...], ...]
    auxiliary: tuple[tuple[int, ...], ...] = ()
    groups: tuple[_GroupFile, ...] = ()


class _GroupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workers: tuple[int, ...]
    plan: _PlanFile


_decoder = msgspec.json.Decoder(_PlanFile)


def dumps(plan: Plan) -> str:
    """Return a plan as one line of JSON; :func:`loads` gives an equal plan back.

    >>> dumps(Plan(1, (Tree(0, 1.0, (-1,), (-1,)),), label="alone"))
    '{"version":1,"label":"alone","trees":[{"root":0,"share":1.0,"up":[-1],"down":[-1]}],"routes":[]}'
    """
    return plan.cached("json", lambda: msgspec.json.encode(_file_of(plan)).decode())


def _file_of(plan: Plan) -> _PlanFile:
    return _PlanFile(
        plan.version,
        plan.label,
        tuple(_TreeFile(tree.root, tree.share, tree.up, tree.down) for tree in plan.trees),
        tuple(plan.routes.values()),
        tuple(path for paths in plan.auxiliary.values() for path in paths),
        tuple(_GroupFile(group.workers, _file_of(group.plan)) for group in plan.groups),
    )


def loads(text: str | bytes) -> Plan:
    """Return the plan of a JSON text; equal texts may give the same frozen object.

    Raises:
        PlanError: the text is not JSON, lacks a key, has an unknown one or a value of the wrong
            type (the message gives its place), or describes no valid plan.
    """
    return _read(text)


@lru_cache(maxsize=8)  # every site of a simulation is sent the same text
def _read(text: str | bytes) -> Plan:
    try:
        file = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"this text is no plan: {error}") from None
    return _plan_of(file)


def _plan_of(file: _PlanFile) -> Plan:
    trees = tuple(Tree(tree.root, tree.share, tree.up, tree.down) for tree in file.trees)
    routes: dict[tuple[int, int], tuple[int, ...]] = {}
    for path in file.routes:
        if len(path) < 3:
            raise PlanError(f"route {list(path)} must pass at least one relay; leave it out")
        if (path[0], path[-1]) in routes:
            raise PlanError(f"route {path[0]}->{path[-1]} is given twice; keep one")
        routes[path[0], path[-1]] = path
    auxiliary: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
    for path in file.auxiliary:
        if len(path) < 2:
            raise PlanError(f"auxiliary path {list(path)} must join two sites; leave it out")
        pair = (path[0], path[-1])
        auxiliary[pair] = (*auxiliary.get(pair, ()), path)
    return Plan(
        file.version,
        trees,
        MappingProxyType(routes),
        file.label,
        MappingProxyType(auxiliary),
        tuple(Group(group.workers, _plan_of(group.plan)) for group in file.groups),
    )
