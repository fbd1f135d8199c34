"""Tells griffe, which reads the code for the reference, what it does not know.

- How msgspec's structs are called: without this the types and defaults of a scenario's keys would
  be missing. It knows how dataclasses are.
- That a docstring may describe several arguments at once: `low_s, high_s: the range.`
"""

from __future__ import annotations

import re

import griffe

_STRUCTS = {"Table", "Struct"}
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+):(.*(?:\n\1 +.*)*)", re.MULTILINE)


class Structs(griffe.Extension):
    """Gives each struct the `__init__` that msgspec makes of it, and each argument a line."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Repeat what is said of several arguments for each of them."""
        if obj.docstring is not None:
            obj.docstring.value = _SEVERAL.sub(_one_by_one, obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Go through a package once all of it is read, so that bases are known."""
        self._go_through(pkg)

    def _go_through(self, of: griffe.Module | griffe.Class) -> None:
        for member in of.members.values():
            if isinstance(member, griffe.Module | griffe.Class):
                self._go_through(member)
        if isinstance(of, griffe.Class) and "__init__" not in of.members and _is_struct(of):
            of.set_member("__init__", _init(of))


def _one_by_one(several: re.Match[str]) -> str:
    return "\n".join(f"{several[1]}{name}:{several[3]}" for name in several[2].split(", "))


def _is_struct(cls: griffe.Class) -> bool:
    named = [str(base).rpartition(".")[2] for base in cls.bases]
    return bool(_STRUCTS & set(named)) or any(_is_struct(base) for base in cls.resolved_bases)


def _init(cls: griffe.Class) -> griffe.Function:
    fields = {
        name: member
        for each in (*reversed(cls.mro()), cls)
        for name, member in each.members.items()
        if isinstance(member, griffe.Attribute) and "instance-attribute" in member.labels
    }
    parameters = [
        griffe.Parameter(
            name,
            annotation=field.annotation,
            kind=griffe.ParameterKind.keyword_only,
            default=field.value,
        )
        for name, field in fields.items()
    ]
    made = griffe.Function(
        "__init__",
        parameters=griffe.Parameters(*parameters),
        lineno=cls.lineno,
        endlineno=cls.lineno,
    )
    made.parent = cls
    return made
