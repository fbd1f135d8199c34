"""The message for an unknown name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return a message that names the nearest known name, if any is near, and lists them all.

    >>> unknown("model", "lenet5", ["mlp", "lenet-5"])
    "no model 'lenet5'; did you mean 'lenet-5'? (known: mlp, lenet-5)"
    """
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no {kind} {name!r}{hint} (known: {', '.join(known)})"
