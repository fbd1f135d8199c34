"""A million malformed messages, of every kind there is: none may be accepted.

    python benchmarks/malformed.py                     # a million, in a minute or two
    python benchmarks/malformed.py --count 20000 --dry

Each begins as a valid message with random contents, and is then spoilt in one way: cut short,
followed by more, a field of another type, a field too few or too many, a kind that is not known;
or it is random bytes. Accepted would be one that the decoder takes for a message.
"""

from __future__ import annotations

import argparse
import random
import types
import typing
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgspec

import common
from anabranch.net.messages import NO_MESSAGE, AnyMessage, decode, encode

KINDS: tuple[type[Any], ...] = typing.get_args(AnyMessage)
WRONG: dict[type, list[Any]] = {
    int: ["1", 1.5, [], None, b"1"],
    float: ["1", [], None],
    bool: ["yes", 2, [], None],
    str: [1, [], None, b"x"],
    bytes: [1, [], None],
    tuple: [1, "x", None, {"a": 1}],
}


def random_value(kind: Any, rng: random.Random) -> Any:
    """Return a random value of a field's type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return random_value(rng.choice(inner), rng)
    if kind is type(None):
        return None
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(random_value(inner[0], rng) for _ in range(rng.randint(0, 3)))
    if origin is tuple:
        return tuple(random_value(each, rng) for each in inner)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return random_message(kind, rng)
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return int(rng.choice(list(kind)))
    makers: dict[Any, Callable[[], Any]] = {
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.choice([0, 1, -1, 7, 1 << 30, -(1 << 40), 1 << 62]),
        float: lambda: rng.choice([0.0, -1.5, 1e300, 3.25]),
        str: lambda: "".join(rng.choice("ab \u00e4\u4e2d") for _ in range(rng.randint(0, 8))),
        bytes: lambda: rng.randbytes(rng.randint(0, 8)),
    }
    return makers[kind]()


def random_message(kind: type[Any], rng: random.Random) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{name: random_value(hints[name], rng) for name in kind.__struct_fields__})


def base_of(kind: Any) -> type | None:
    """Return the plain type of a field that has one, in which a wrong value is surely wrong."""
    if typing.get_origin(kind) is tuple:
        return tuple
    return kind if kind in WRONG else None


def spoilt(rng: random.Random) -> tuple[str, bytes]:
    """Return a malformed message, and how it was made."""
    kind = rng.choice(KINDS)
    message = random_message(kind, rng)
    data = encode(message)
    how = rng.choice(["short", "long", "type", "few", "many", "kind", "bytes"])
    if how == "bytes":
        return how, rng.randbytes(rng.randint(0, 64))
    if how == "short":
        return how, data[: rng.randrange(len(data))]
    if how == "long":
        return how, data + rng.randbytes(rng.randint(1, 8))
    row = msgspec.msgpack.decode(data)
    if how == "kind":
        row[0] = rng.choice(["NoSuchKind", "", 3, None, b"Join", row[0].lower()])
    elif how == "many":
        row += [rng.choice([0, None, "x"])] * rng.randint(1, 3)
    elif how == "few":
        required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
        if not required:
            return spoilt(rng)
        row = row[: rng.randint(0, required)]  # the kind and not all that it needs
    else:
        hints = typing.get_type_hints(kind)
        plain = [
            (place, base)
            for place, name in enumerate(kind.__struct_fields__, 1)
            if (base := base_of(hints[name])) is not None
        ]
        if not plain:
            return spoilt(rng)
        place, base = rng.choice(plain)
        row[place] = rng.choice(WRONG[base])
    return how, msgspec.msgpack.encode(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    for kind in KINDS:  # what they are made from is well formed
        message = random_message(kind, rng)
        assert decode(encode(message)) == message
    made: Counter[str] = Counter()
    accepted: list[str] = []
    for _ in range(options.count):
        how, data = spoilt(rng)
        made[how] += 1
        try:
            found = decode(data)
        except NO_MESSAGE:
            continue
        accepted.append(f"{how}: {data.hex()} as {found}")
    print(f"{options.count} malformed messages of {len(KINDS)} kinds, {len(accepted)} accepted")
    for each in accepted[:10]:
        print("  ", each)
    if not options.dry:
        common.write(
            "malformed",
            seed=options.seed,
            messages=options.count,
            kinds=len(KINDS),
            by_way=dict(sorted(made.items())),
            accepted=accepted[:100],
            accepted_count=len(accepted),
        )
    if accepted:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
