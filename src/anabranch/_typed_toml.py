"""Read TOML into typed structs, with errors that name the key and the fix.

Every file a user writes (overlays, scenarios) is read here, so that they all complain alike.
"""

from __future__ import annotations

import math
import re
import reprlib
import threading
import tomllib
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

T = TypeVar("T")
MOST = 2**31 - 1  # what is counted has to fit a C int
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Part = Annotated[float, Meta(gt=0, le=1)]
# At the first use of a type msgspec looks at its fields; two threads that do so at once crash.
# So other files make their decoders as they are imported, or call `decode_json`.
_one_at_a_time = threading.RLock()
LONGEST_S = 1e9  # thirty years; TOML has inf and nan, and a bound keeps both out
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
SecondsFromZero = Annotated[float, Meta(ge=0, le=LONGEST_S)]


class BadInput(ValueError):
    """What a user gave cannot be; a command ends by it with status 2."""


class TomlError(ValueError):
    """Text that is not TOML (names the line) or not what is expected (names the key)."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of such a file; its subclasses list the keys."""


def tag_of(table: Table | type[Table]) -> str:
    """Return what a file writes as a table's ``kind``."""
    return str(table.__struct_config__.tag)


def decode_toml(text: str, kind: type[T]) -> T:
    """Read TOML text as a msgspec struct.

    Fields may be tables, optional ones, tables by name (``dict[str, Table]``), lists and tuples
    of tables, and ``Table | list[Table]``, which reads both ``[key]`` and ``[[key]]``. Wherever
    a table stands, its ``kind`` may choose one of several structs.

    Raises:
        TomlError: a syntax error, with its line; or a key that is unknown (names the nearest
            valid one), missing, of the wrong type or out of range, with its path, such as
            ``link[3].rate_bps``; the first of a list is ``[0]``. A ValueError that a struct's
            ``__post_init__`` raises is passed on under the path of its table.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n", 0, len(text.rstrip())) + 1
        what = str(error).replace("at end of document", f"at line {last}, the last")
        raise TomlError(f"not TOML: {what}; mend that line") from error
    return converted(document, kind)


def converted(document: dict[str, Any], kind: type[T], strict: bool = True) -> T:
    """Read a table as a msgspec struct; without ``strict``, text may stand for a number.

    Raises:
        TomlError: as ``decode_toml``, but for syntax.
    """
    with _one_at_a_time:
        _check_keys(document, inspect.type_info(kind), "")
        try:
            return msgspec.convert(document, kind, strict=strict)
        except msgspec.ValidationError as error:
            raise TomlError(_explain(error, document, kind)) from error


def checked(table: T) -> T:
    """Return a table that was made in code, if a file might say the same.

    Raises:
        TomlError: a field is of the wrong type or out of range; names it.
    """
    with _one_at_a_time:
        document = msgspec.to_builtins(table)
        try:
            return msgspec.convert(document, type(table))
        except msgspec.ValidationError as error:
            raise TomlError(_explain(error, document, type(table))) from None


def decode_json(text: str, kind: Any) -> Any:
    """Read a table that ``msgspec.json.encode`` wrote, in any thread.

    Raises:
        msgspec.DecodeError: the text holds no such table.
    """
    with _one_at_a_time:
        return msgspec.json.decode(text, type=kind)


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
    allowed = info.types if isinstance(info, inspect.UnionType) else (info,)
    _check_choice(value, allowed, path)
    if isinstance(value, list):
        for each in allowed:
            if isinstance(each, inspect.ListType | inspect.VarTupleType):
                for i, item in enumerate(value):
                    _check_keys(item, each.item_type, f"{path}[{i}]")
            elif isinstance(each, inspect.TupleType):
                # a wrong length is msgspec's to refuse
                for i, (item, kind) in enumerate(zip(value, each.item_types, strict=False)):
                    _check_keys(item, kind, f"{path}[{i}]")
    elif isinstance(value, dict):
        for each in allowed:
            if isinstance(each, inspect.DictType):
                for key, item in value.items():
                    _check_keys(item, each.value_type, _below(path, _quoted(key)))
        struct = _choose(value, allowed, path)
        if struct is None:
            return
        valid = {field.encode_name: field.type for field in struct.fields}
        for key, item in value.items():
            below = _below(path, key)
            if key == struct.tag_field:
                continue
            if key not in valid:
                near = (
                    nearest(key, valid)
                    or _further_down(key, valid)
                    or (f"the keys here are {listed(valid)}" if valid else "there are none here")
                )
                raise TomlError(f"{below}: no such key; {near}")
            _check_keys(item, valid[key], below)


def _further_down(key: str, valid: Mapping[str, Any]) -> str:
    """Return ``did you mean 'stop.rounds'?`` where one of the tables here has that very key."""
    for name, info in valid.items():
        kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
        for struct in kinds:
            if isinstance(struct, inspect.StructType) and key in {
                field.encode_name for field in struct.fields
            }:
                return f"did you mean {f'{name}.{key}'!r}?"
    return ""


def _check_choice(value: Any, allowed: Sequence[Any], path: str) -> None:
    """Raise TomlError where a word was given that is none of those allowed."""
    choices = [
        each for kind in allowed if isinstance(kind, inspect.LiteralType) for each in kind.values
    ]
    others = [kind for kind in allowed if not isinstance(kind, inspect.LiteralType)]
    if isinstance(value, str):
        free = any(isinstance(kind, inspect.StrType) for kind in others)
    else:
        free = any(not isinstance(kind, inspect.NoneType) for kind in others)
    if choices and not free and value not in choices:
        known = [str(each) for each in choices]
        near = nearest(str(value), known) or f"give one of {listed(known)}"
        raise TomlError(f"{path}: no such choice {value!r}; {near}")


def _choose(table: dict[str, Any], allowed: Sequence[Any], path: str) -> inspect.StructType | None:
    """Return which struct a table is meant to be; None where none is expected."""
    structs = [each for each in allowed if isinstance(each, inspect.StructType)]
    if not structs or structs[0].tag_field is None:
        return structs[0] if structs else None
    tag_field = structs[0].tag_field
    by_tag = {str(struct.tag): struct for struct in structs}
    tag = table.get(tag_field)
    where = _below(path, tag_field)
    if tag is None:
        raise TomlError(f"{where}: this key is required; give one of {listed(by_tag)}")
    if not isinstance(tag, str) or tag not in by_tag:
        near = nearest(str(tag), by_tag) or f"give one of {listed(by_tag)}"
        raise TomlError(f"{where}: no such kind {tag!r}; {near}")
    return by_tag[tag]


def _explain(error: msgspec.ValidationError, document: dict[str, Any], kind: type) -> str:
    """Say what msgspec found wrong in the words of TOML: the key first, then the fix.

    msgspec writes ``Expected `float` > 0.0 - at `$.link[3].rate_bps` ``.
    """
    what = str(error).partition(" - at `$")[0]
    path, value = _follow(str(error), document, kind)
    if isinstance(error.__cause__, ValueError):
        return f"{path}: {error.__cause__}" if path else str(error.__cause__)
    if missing := re.fullmatch("Object missing required field `(.+)`", what):
        return f"{_below(path, missing[1])}: this key is required; add it"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path}: must be a finite number, not {value}"
    if expected := re.fullmatch(r"Expected `(.+?)`(?:, got `.+`)?(.*?)(?:, got \d+)?", what):
        types = [_TYPES.get(each, each) for each in expected[1].split(" | ") if each != "null"]
        bound = expected[2].removesuffix(".0")
        return f"{path}: must be {' or '.join(types)}{bound}, not {reprlib.repr(value)}"
    return f"{path}: {what[0].lower()}{what[1:]}; change it"


def _follow(message: str, document: dict[str, Any], kind: type) -> tuple[str, Any]:
    """Return the path that users know, and the value there, of the place that msgspec names.

    It writes ``[...]`` for whichever entry of a dict; this finds out which.
    """
    place = message.partition(" - at `$")[2].rstrip("`")
    path = ""
    value: Any = document
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", place):
        if index == "...":
            name = _first_wrong(value, document, kind, message)
            path, value = _below(path, _quoted(name)), value[name]
        elif index:
            path, value = f"{path}[{index}]", value[int(index)]
        else:
            path, value = _below(path, key), value[key]
    return path, value


def _first_wrong(table: dict[str, Any], document: dict[str, Any], kind: type, message: str) -> str:
    """Return the first entry of a table in the document that, alone, is refused so."""
    entries = dict(table)
    try:
        for name, entry in entries.items():
            table.clear()
            table[name] = entry
            try:
                msgspec.convert(document, kind)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return name
    finally:
        table.clear()
        table.update(entries)
    raise AssertionError(f"no entry of {list(entries)} alone is refused: {message}")


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _quoted(name: str) -> str:
    """Return a name that the user chose, as TOML writes it in a path."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


# What other programs call it, where no key looks like that.
_MEANT = {
    **dict.fromkeys(("rate", "bandwidth", "bandwidth_bps", "bw", "capacity"), "rate_bps"),
    **dict.fromkeys(("delay", "delay_s", "latency"), "latency_s default_latency_s"),
    **dict.fromkeys(("step_s", "compute_s", "step_time_s", "seconds"), "fixed_s"),
    **dict.fromkeys(("source", "src"), "from"),
    **dict.fromkeys(("target", "dst", "dest"), "to"),
    **dict.fromkeys(("epochs", "iterations", "steps"), "rounds"),
    "lr": "learning_rate",
}


def nearest(name: str, valid: Collection[str]) -> str:
    """Return ``did you mean 'rate_bps'?``, or nothing where no valid name is near."""
    meant = [key for key in _MEANT.get(name, "").split() if key in valid]
    begun = [key for key in valid if key.startswith(f"{name}_")]
    near = meant or begun or get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def listed(names: Collection[str]) -> str:
    """Return names for an error message."""
    return ", ".join(names)
