"""Curves of docs/reproductions, as SVG, from the JSON of `python -m papers`: `make pages`.

Where a page shows `results/NAME.svg`, it is drawn from `results/NAME.json` beside it.
A panel for each network, a line for each system: accuracy against seconds. Colours are such as can
be seen on white and on dark pages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

REPRODUCTIONS = Path(__file__).parent / "reproductions"
SHOWN = re.compile(r"!\[[^]]*\]\((\S+)\.svg\)")
COLOURS = ("#2f7ed8", "#e8743b", "#19a979", "#bf399e", "#d9a400", "#6c8893")
_GREY = "#808080"
_PANEL = 340, 240  # of its axes, pixels
_LEFT, _TOP, _BETWEEN, _BELOW = 48, 40, 40, 70

Curve = Sequence[Sequence[float]]


def pictures() -> dict[Path, str]:
    """Return the curves that pages show, as SVG, by the file that holds them."""
    drawn = {}
    for page in sorted(REPRODUCTIONS.glob("*.md")):
        for name in SHOWN.findall(page.read_text("utf-8")):
            document = json.loads((page.parent / f"{name}.json").read_text("utf-8"))
            drawn[page.parent / f"{name}.svg"] = picture(document)
    return drawn


def picture(document: Mapping[str, Any]) -> str:
    """Return a result's curves as SVG.

    Args:
        document: what its JSON holds; each run has a `curve` of [seconds, accuracy], and the labels
            `network` and `system`.
    """
    runs = document["runs"]
    networks = list(dict.fromkeys(run["labels"]["network"] for run in runs))
    systems = list(dict.fromkeys(run["labels"]["system"] for run in runs))
    colours = dict(zip(systems, COLOURS, strict=False))
    longest_s = max(at_s for run in runs for at_s, _ in run["curve"])
    step_s = _step(longest_s)
    ends_s = step_s * math.ceil(longest_s / step_s)
    width, height = _PANEL
    total = _LEFT + len(networks) * (width + _BETWEEN), _TOP + height + _BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" '
        'font-family="system-ui, sans-serif" font-size="13">'
    ]
    for index, network in enumerate(networks):
        left = _LEFT + index * (width + _BETWEEN)
        parts.append(_text(left, _TOP - 14, network, _GREY))
        for tenth in range(0, 11, 2):
            y = _TOP + height * (1 - tenth / 10)
            parts.append(_line([(left, y), (left + width, y)], _GREY, 0.3))
            if index == 0:
                parts.append(_text(left - 8, y + 4, f"{tenth * 10}%", _GREY, "end"))
        for count in range(round(ends_s / step_s) + 1):
            x = left + width * count * step_s / ends_s
            parts.append(_text(x, _TOP + height + 18, f"{count * step_s:g}", _GREY, "middle"))
        parts.append(_text(left + width / 2, _TOP + height + 38, "seconds", _GREY, "middle"))
        for run in runs:
            if run["labels"]["network"] == network:
                points = [
                    (left + width * at_s / ends_s, _TOP + height * (1 - accuracy))
                    for at_s, accuracy in run["curve"]
                ]
                parts.append(_line(points, colours[run["labels"]["system"]], 2))
    x = float(_LEFT)
    for system in systems:
        parts.append(_text(x, _TOP + height + 60, system, colours[system]))
        x += 8 * len(system) + 24
    return "\n".join([*parts, "</svg>"]) + "\n"


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
