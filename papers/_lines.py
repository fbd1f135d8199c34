"""Results as JSON with one record a line, so that a diff shows which records have changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as JSON with one line per key.

    A list or table that contains lists or tables gets one line per item.

    Args:
        document: values that JSON can hold, by string.

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
    if isinstance(value, Mapping) and any(map(_is_nested, value.values())):
        items = [f"{_plain(key)}: {_plain(each)}" for key, each in value.items()]
        return "{\n    " + ",\n    ".join(items) + "\n  }"
    if isinstance(value, list | tuple) and any(map(_is_nested, value)):
        return "[\n    " + ",\n    ".join(map(_plain, value)) + "\n  ]"
    return _plain(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
