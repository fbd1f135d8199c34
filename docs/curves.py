"""Curves of docs/reproductions, as SVG, from the JSON of `python -m papers`: `make pages`.

Where a page shows `results/NAME.svg`, it is drawn from `results/NAME.json` beside it. Where that is
not there, all `results/NAME-*.json` with a ``grid`` are its lines. Colours can be seen on white and
on dark pages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

REPRODUCTIONS = Path(__file__).parent / "reproductions"
SHOWN = re.compile(r"!\[[^]]*\]\((\S+)\.svg\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
COLOURS = (
    *("#2f7ed8", "#e8743b", "#19a979", "#bf399e", "#d9a400"),
    *("#8d6bd1", "#6c8893", "#a3622c", "#111111", "#e35d6a"),
)
_GREY = "#808080"
_PANEL = 340, 240  # of its axes, pixels
_CELL = 300, 132
_LEFT, _TOP, _BETWEEN, _BELOW = 48, 58, 40, 70


def pictures() -> dict[Path, str]:
    """Return the pictures that pages show, as SVG, by the file that holds them."""
    drawn = {}
    for page in sorted(REPRODUCTIONS.glob("*.md")):
        for name in SHOWN.findall(COMMENT.sub("", page.read_text("utf-8"))):
            path = page.parent / f"{name}.json"
            if path.exists():
                drawn[path.with_suffix(".svg")] = picture(json.loads(path.read_text("utf-8")))
                continue
            found = sorted(path.parent.glob(f"{path.stem}-*.json"))
            drawn[path.with_suffix(".svg")] = grid(
                [json.loads(each.read_text("utf-8")) for each in found]
            )
    return drawn


def grid(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return a grid as SVG: a line for each document, a column for each of its cells.

    Args:
        documents: what JSON files hold. In each, ``picture.grid`` has the name of the ``line``, all
            ``names`` that have colours, and the ``cells`` by column: each has ``lines`` of text,
            and a ``name``, which is empty for a grey cell.
    """
    grids = [document["picture"]["grid"] for document in documents]
    colours = dict(zip(grids[0]["names"], COLOURS, strict=False))
    columns = list(grids[0]["cells"])
    width, height = _CELL
    left, top = 120, 30
    total = left + len(columns) * width, top + len(grids) * height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" '
        'font-family="system-ui, sans-serif" font-size="13">'
    ]
    for across, column in enumerate(columns):
        parts.append(_text(left + across * width + 8, top - 10, column, _GREY))
    for down, of in enumerate(grids):
        y = top + down * height
        parts.append(_text(left - 8, y + 22, of["line"], _GREY, "end"))
        for across, column in enumerate(columns):
            cell, x = of["cells"][column], left + across * width
            colour = colours.get(cell["name"], _GREY)
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{width - 4}" height="{height - 4}" '
                f'fill="{colour}" fill-opacity="0.15" stroke="{colour}"/>'
            )
            parts += [
                _text(x + 8, y + 20 + 17 * number, line, colour if number == 0 else _GREY)
                for number, line in enumerate(cell["lines"])
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def picture(document: Mapping[str, Any]) -> str:
    """Return a result's curves as SVG.

    Args:
        document: what its JSON holds; `papers/_picture.py` says what its ``picture`` has.
    """
    of = document["picture"]
    panels = of["panels"]
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    across = _Axis.of([x for x, _ in points])
    shares = of["y"] == "accuracy"
    up = _Axis(0.2, 0.0, 1.0) if shares else _Axis.of([y for _, y in points])
    width, height = _PANEL
    legend, below = _legend(names, colours, len(panels) * (width + _BETWEEN))
    total = _LEFT + len(panels) * (width + _BETWEEN), _TOP + height + _BELOW + below
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" '
        'font-family="system-ui, sans-serif" font-size="13">'
    ]
    parts.append(_text(8, _TOP - 12, of["y"], _GREY))
    for index, (panel, lines) in enumerate(panels.items()):
        left = _LEFT + index * (width + _BETWEEN)
        parts.append(_text(left, _TOP - 34, panel, _GREY))
        for value in up.marks:
            y = _TOP + height * (1 - up.part(value))
            parts.append(_line([(left, y), (left + width, y)], _GREY, 0.3))
            if index == 0:
                told = f"{value:.0%}" if shares else f"{value:g}"
                parts.append(_text(left - 8, y + 4, told, _GREY, "end"))
        for value in across.marks:
            x = left + width * across.part(value)
            parts.append(_text(x, _TOP + height + 18, f"{value:g}", _GREY, "middle"))
        parts.append(_text(left + width / 2, _TOP + height + 38, of["x"], _GREY, "middle"))
        for name, line in lines.items():
            at = [
                (left + width * across.part(x), _TOP + height * (1 - up.part(y))) for x, y in line
            ]
            parts.append(_line(at, colours[name], 2))
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


def _legend(
    names: Sequence[str], colours: Mapping[str, str], width: float
) -> tuple[list[str], int]:
    """Return the names of lines, as text in their colours, and the height of further lines."""
    parts, x, row = [], float(_LEFT), 0
    for name in names:
        if x > _LEFT and x + 8 * len(name) > width:
            x, row = float(_LEFT), row + 1
        parts.append(_text(x, _TOP + _PANEL[1] + 60 + 18 * row, name, colours[name]))
        x += 8 * len(name) + 24
    return parts, 18 * row


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis.

    Args:
        step: between marks.
        begins, ends: whole steps.
    """

    step: float
    begins: float
    ends: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis:
        """Return the axis that holds zero and these values."""
        least, most = min(*values, 0.0), max(*values, 0.0)
        step = _step(most - least)
        return cls(step, step * math.floor(least / step), step * math.ceil(most / step))

    @property
    def marks(self) -> list[float]:
        """Where it has marks."""
        return [
            self.step * count
            for count in range(round(self.begins / self.step), round(self.ends / self.step) + 1)
        ]

    def part(self, value: float) -> float:
        """Return how far along a value lies: 0 where it begins, 1 where it ends."""
        return (value - self.begins) / (self.ends - self.begins)


def _step(longest: float) -> float:
    """Return a round distance of four to eight marks.

    >>> _step(180.0), _step(54.0)
    (30, 10)
    """
    size = 10 ** math.floor(math.log10(longest / 4))
    return max(size * factor for factor in (1, 2, 3, 5) if longest / (size * factor) >= 4)


def _line(points: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    for file, svg in pictures().items():
        file.write_text(svg, "utf-8")
