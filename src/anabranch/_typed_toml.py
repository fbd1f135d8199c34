"""Read TOML into typed structs, with errors that name the key and the fix.

Every file a user writes (overlays, scenarios) is read here, so that they all complain alike.
"""

from __future__ import annotations

import math
import re
import reprlib
import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


class TomlError(ValueError):
    """Text that is not TOML (names the line) or not what is expected (names the key)."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of such a file; its subclasses list the keys."""


def decode_toml(text: str, kind: type[T]) -> T:
    """Read TOML text as a msgspec struct; tables with a ``kind`` may be one of several structs.

    Raises:
        TomlError: a syntax error, with its line; or a key that is unknown (names the nearest
            valid one), missing, of the wrong type or out of range, with its path, such as
            ``link[3].rate_bps``; the first of a list is ``[0]``.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n", 0, len(text.rstrip())) + 1
        what = str(error).replace("at end of document", f"at line {last}, the last")
        raise TomlError(f"not TOML: {what}; mend that line") from error
    _check_keys(document, inspect.type_info(kind), "")
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise TomlError(_explain(str(error), document)) from error


_TYPES = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "a table",
    "str": "a string",
}


def _check_keys(value: Any, info: Any, path: str) -> None:
    """Raise TomlError at the first key that the format does not have.

    msgspec would refuse it too, but could not name the nearest.
    """
    if isinstance(info, inspect.LiteralType) and value not in info.values:
        known = [str(each) for each in info.values]
        near = nearest(str(value), known) or f"give one of {listed(known)}"
        raise TomlError(f"{path}: no such choice {value!r}; {near}")
    if isinstance(value, list):
        if isinstance(info, inspect.ListType):
            for i, item in enumerate(value):
                _check_keys(item, info.item_type, f"{path}[{i}]")
    elif isinstance(value, dict):
        struct = _choose(value, info, path)
        if struct is None:
            return
        valid = {field.encode_name: field.type for field in struct.fields}
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            if key == struct.tag_field:
                continue
            if key not in valid:
                near = nearest(key, valid) or f"the keys here are {listed(valid)}"
                raise TomlError(f"{below}: no such key; {near}")
            _check_keys(item, valid[key], below)


def _choose(table: dict[str, Any], info: Any, path: str) -> inspect.StructType | None:
    """Return which struct a table is meant to be; None where none is expected."""
    kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
    structs = [each for each in kinds if isinstance(each, inspect.StructType)]
    if not structs or structs[0].tag_field is None:
        return structs[0] if structs else None
    tag_field = structs[0].tag_field
    by_tag = {str(struct.tag): struct for struct in structs}
    tag = table.get(tag_field)
    if tag is None:
        raise TomlError(f"{path}.{tag_field}: this key is required; give one of {listed(by_tag)}")
    if tag not in by_tag:
        near = nearest(str(tag), by_tag) or f"give one of {listed(by_tag)}"
        raise TomlError(f"{path}.{tag_field}: no such kind {tag!r}; {near}")
    return by_tag[tag]


def _explain(message: str, document: dict[str, Any]) -> str:
    """Say what msgspec found wrong in the words of TOML: the key first, then the fix.

    msgspec writes ``Expected `float` > 0.0 - at `$.link[3].rate_bps` ``.
    """
    what, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if missing := re.fullmatch("Object missing required field `(.+)`", what):
        return f"{path}.{missing[1]}".lstrip(".") + ": this key is required; add it"
    value: Any = document
    for key, place in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[int(place) if place else key]
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path}: must be a finite number, not {value}"
    if expected := re.fullmatch(r"Expected `(\w+)(?: \| null)?`(?:, got `.+`)?(.*)", what):
        kind, bound = _TYPES[expected[1]], expected[2].removesuffix(".0")
        return f"{path}: must be {kind}{bound}, not {reprlib.repr(value)}"
    return f"{path}: {what[0].lower()}{what[1:]}; change it"


def nearest(name: str, valid: Collection[str]) -> str:
    """Return ``did you mean 'rate_bps'?``, or nothing where no valid name is near."""
    near = get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def listed(names: Collection[str]) -> str:
    """Return names for an error message."""
    return ", ".join(names)
