"""Results as JSON with one record a line, so that a diff shows which records have changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as JSON: a line for each of its keys, and for each item of a list or table.

    Args:
        document: what JSON can hold.

    >>> print(dumps({"seed": 0, "rows": [{"what": "star", "s": 9.5}, {"what": "ring", "s": 4.0}]}))
    {
      "seed": 0,
      "rows": [
        {"what": "star", "s": 9.5},
        {"what": "ring", "s": 4.0}
      ]
    }
    """
    lines = [f"{_plain(key)}: {_value(value)}" for key, value in document.items()]
    return "{\n  " + ",\n  ".join(lines) + "\n}"


def _value(value: Any) -> str:
    held = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list | tuple) or not any(
        isinstance(each, Mapping | list | tuple) for each in held
    ):
        return _plain(value)
    if isinstance(value, Mapping):
        items, begin, end = [f"{_plain(k)}: {_plain(v)}" for k, v in value.items()], "{", "}"
    else:
        items, begin, end = [_plain(each) for each in value], "[", "]"
    return f"{begin}\n    " + ",\n    ".join(items) + f"\n  {end}"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
