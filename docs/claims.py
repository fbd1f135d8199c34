"""`make claims`: which committed JSON holds the measured numbers of each sentence and table row.

A **claim** is a sentence with a number that has a unit (s, %, times, MB ...) or is a share ("0.9 of
the limit"), or a row of a table with such a number, a decimal or a range ("2 to 3") in a cell. What
a row is about (its first cell), columns headed "paper" or "default", and code are left out.

It is **traced** to the JSON files of benchmarks/results and docs/reproductions/results that are
named, by a link or in words (`wan_*.json` too), nearest first: in the sentence or row itself; in
its paragraph or list item, or for a table in what stands right before and after it; else in its
section, which is all under the same heading, but for a title's. A table of docs/tables.py is traced
to its JSON.

Each number is then looked for in these files: `value` if a number in them rounds to it in its unit
(or one within a text, or the median or mean of a list), `quotient` if that of two values does which
have the same key or are in the same small object. Files with many values have many quotients, so
that one found there says little.

A comment `<!-- no JSON: REASON -->` takes off the sentence in or right after which it stands; alone
between blank lines, the paragraph, list or table that follows; where the reason names a JSON, until
that is there, and then it traces them. `<!-- to come from FILE -->` takes
off what stands before its `<!-- end -->`.

The command lists all claims, and exits with 1 if one that is not taken off has no JSON.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = (ROOT / "benchmarks/results", ROOT / "docs/reproductions/results")
PER_UNIT = {  # how many there are in one of what JSON files hold: seconds, bytes, bit/s, shares
    **{"s": 1.0, "seconds": 1.0, "ms": 1e3, "µs": 1e6, "minutes": 1 / 60, "hours": 1 / 3600},
    **{"%": 100.0, "points": 100.0, "times": 1.0, "x": 1.0, "samples/s": 1.0, "s/GB": 1.0},
    **{"kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "GB/s": 1e-9, "KiB": 2**-10, "MiB": 2**-20},
    **{"GiB": 2**-30, "Mbit/s": 1e-6, "Gbit/s": 1e-9, "bytes": 1.0},
}
SMALL = 30
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+)"
SEVERAL = rf"{NUMBER}(?:(?:,? to| and| or|,) [-+]?{NUMBER})*"
UNIT = rf"(?:{'|'.join(sorted(map(re.escape, PER_UNIT), key=len, reverse=True))})(?![\w/²-])"
WITH_UNIT = re.compile(rf"(?<![\w.,/^-])({SEVERAL}) ?({UNIT})")
SHARE = re.compile(r"(?<![\w.,/^-])(\d*\.\d+)() (?:\([^)]*\) )?of (?:the|its|their|that)\b")
BARE = re.compile(rf"(?<![\w.,/^-])({NUMBER})(?![\w²/])")
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2`*$", re.DOTALL | re.MULTILINE)
OFF = re.compile(r"<!-- no JSON: (.+?) -->")
BLOCK = re.compile(r"<!-- (to come )?from (\S+\.json)[^>]*-->.*?<!-- end -->", re.DOTALL)
NAMED = re.compile(r"[\w*-]+(?:\.[\w*-]+)*\.json\b")
ENDED = re.compile(r"(?<=[.!?])([*)\"]*(?: <!-- [^>]+ -->)?) +(?=[*_(\[]*[A-Z\"“`])")


@dataclass(frozen=True)
class Claim:
    """A sentence or row with measured numbers.

    Args:
        line: where its paragraph, item or row begins, from 1.
        text: what it says.
        numbers: each as it is written, and its unit; empty for a share and for a bare number.
        where: what names its files: `sentence`, `paragraph`, `section` or `made`; empty if none.
        files: the names of the JSON files that it is traced to.
        off: why it is taken off the list; empty if it is not.
    """

    line: int
    text: str
    numbers: tuple[tuple[str, str], ...]
    where: str = ""
    files: tuple[str, ...] = ()
    off: str = ""


def claims(page: str, names: tuple[str, ...]) -> Iterator[Claim]:
    """Yield the claims of a page.

    Args:
        page: its text, in Markdown.
        names: the JSON files that there are.
    """
    page = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page)
    made = {
        line: found
        for found in BLOCK.finditer(page)
        for line in range(_line(page, found.start()), _line(page, found.end()) + 1)
    }
    chunks = list(_chunks(page))
    for place, (first, section, lines) in enumerate(chunks):
        before = chunks[place - 1][2] if place else []
        alone = OFF.fullmatch(" ".join(before))
        beside = chunks[max(0, place - 1) : place + 2]
        around = " ".join(each for _, of, other in beside if of == section for each in other)
        whole = " ".join(each for _, of, other in chunks if of == section > 0 for each in other)
        for line, near, text, numbers in _said(first, lines, around):
            off = OFF.search(text) or alone
            if off and (late := _files(off[1], names)):
                yield Claim(line, text, numbers, "sentence", late)
            elif off:
                yield Claim(line, text, numbers, off=off[1])
            elif line in made and made[line][1]:
                yield Claim(line, text, numbers, off=f"older than {made[line][2]}")
            elif line in made:
                yield Claim(line, text, numbers, "made", _files(made[line][2], names))
            else:
                places = {"sentence": text, "paragraph": near, "section": whole}
                where = next((each for each in places if _files(places[each], names)), "")
                files = _files(places[where], names) if where else ()
                yield Claim(line, text, numbers, where, files)


def _line(page: str, at: int) -> int:
    return page.count("\n", 0, at) + 1


def _chunks(page: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yield what stands between blank lines or headings: its first line, its section, its lines.

    Sections are numbered; what stands under a title, and in no section, has numbers below 0.
    """
    section, headings, chunk = -1, 1, list[str]()
    for number, line in enumerate([*page.split("\n"), ""], 1):
        is_heading = re.match(r"#{1,6} ", line)
        if (is_heading or not line.strip()) and chunk:
            yield number - len(chunk), section, chunk
            chunk = []
        if is_heading:
            headings += 1
            section = -headings if line.startswith("# ") else headings
        if line.strip() and not is_heading:
            chunk.append(line)


def _said(
    first: int, lines: list[str], around: str
) -> Iterator[tuple[int, str, str, tuple[tuple[str, str], ...]]]:
    """Yield what a chunk says, if with a number: its line, what stands near it, it, its numbers."""
    if lines[0].startswith("|"):
        headings = lines[0].strip()[1:-1].split("|")
        for line, text in enumerate(lines[2:], first + 2):
            numbers = tuple(_of_row(headings, text.strip()[1:-1].split("|")))
            if numbers:
                yield line, around, text, numbers
        return
    begins = [at for at, line in enumerate(lines) if at == 0 or re.match(r"\s*([-*]|\d+\.) ", line)]
    for begin, end in itertools.pairwise([*begins, len(lines)]):
        near = " ".join(line.strip() for line in lines[begin:end])
        for text in ENDED.sub(r"\1\n", near).split("\n"):
            plain = _plain(text)
            numbers = (*_with_units(WITH_UNIT, plain), *_with_units(SHARE, plain))
            if numbers:
                yield first + begin, near, text, numbers


def _of_row(headings: list[str], cells: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a row and their units, if one of its cells tells what was measured."""
    told, found = False, []
    for heading, cell in list(zip(headings, cells, strict=False))[1:]:
        plain = _plain(cell).strip(" ~")
        if re.search("paper|default", heading.lower()) or not re.match(
            rf"{NUMBER}\b|.*{UNIT}", plain
        ):
            continue
        units = re.findall(rf"(?<![\w/])({UNIT})", heading)
        told |= bool(units or WITH_UNIT.search(plain) or re.search(r"\d?\.\d|\d to \d", plain))
        found += _with_units(WITH_UNIT, plain)
        found += [(n, units[0] if units else "") for n in BARE.findall(WITH_UNIT.sub("", plain))]
    yield from found if told else ()


def _with_units(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    return [(n, each[2]) for each in pattern.finditer(text) for n in re.findall(NUMBER, each[1])]


def _plain(text: str) -> str:
    """Return a text without code, comments and the targets of links."""
    text = re.sub(r"<!--.*?-->|`[^`]*`", "", text)
    return re.sub(r"\]\([^)\s]*\)", "]", text).replace("*", "")


def _files(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that a text names."""
    patterns = [re.escape(each).replace(r"\*", ".*") for each in NAMED.findall(text)]
    return tuple(name for name in names if any(re.fullmatch(each, name) for each in patterns))


def held(document: Any) -> dict[str, list[float]]:
    """Return the numbers of a JSON document, sorted, in groups.

    A group is what has the same key, with the median and the mean of each list, or what is in an
    object of at most `SMALL` numbers. Those in texts are in a group without a name.
    """
    found: defaultdict[str, set[float]] = defaultdict(set)

    def look(key: str, value: Any) -> set[float]:
        inner: set[float] = set()
        if isinstance(value, Mapping):
            for name, each in value.items():
                inner |= look(name, each)
            if len(inner) <= SMALL:
                found[f"object {len(found)}"] = set(inner)
        elif isinstance(value, list):
            columns = defaultdict(list)
            for each in value:
                inner |= look(key, each)
                for name, one in (each if isinstance(each, Mapping) else {key: each}).items():
                    if isinstance(one, int | float):
                        columns[name].append(float(one))
            for name, numbers in columns.items():
                found[name] |= {statistics.median(numbers), statistics.fmean(numbers)}
        elif isinstance(value, str):
            found[""] |= {float(each.replace(",", "")) for each in re.findall(NUMBER, value)}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            inner.add(abs(float(value)))
            found[key] |= inner
        return inner

    look("", document)
    return {key: sorted(values) for key, values in found.items()}


def backed(number: str, unit: str, values: Mapping[str, list[float]]) -> str:
    """Return how values hold a number: as a `value`, as a `quotient`, or `not found`.

    Args:
        number: as it is written; its decimals say how exactly.
        unit: a key of `PER_UNIT`, or empty.
        values: as `held` groups them.
    """
    plain = number.replace(",", "")
    n, half = float(plain), 0.5000001 * 10.0 ** -len(plain.partition(".")[2])
    scales = {1.0, PER_UNIT.get(unit, 1.0)}
    if any(
        _has(each, (n - half) / by, (n + half) / by) for each in values.values() for by in scales
    ):
        return "value"
    by = PER_UNIT[unit] if unit in ("%", "points") else 1.0
    wanted = {n} if by == 1 else {n, by - n, by + n}  # 40 % less, 40 % more
    for key, each in values.items():
        for below in each if key else ():
            for q in wanted if below else ():
                if _has(each, (q - half) / by * below, (q + half) / by * below):
                    return "quotient"
    return "not found"


def _has(values: list[float], least: float, most: float) -> bool:
    at = bisect.bisect_left(values, least)
    return at < len(values) and values[at] <= most


@cache
def _held_by(name: str) -> dict[str, list[float]]:
    path = next(folder / name for folder in RESULTS if (folder / name).exists())
    return held(json.loads(path.read_text("utf-8")))


def pages() -> list[Path]:
    """Return the pages that are gone over; those that `python -m papers` wrote are not."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md"]
    return sorted(each for each in [*found, ROOT / "CHANGELOG.md"] if each.parent not in RESULTS)


def results() -> tuple[str, ...]:
    """Return the names of the JSON files that there are."""
    return tuple(sorted(each.name for folder in RESULTS for each in folder.glob("*.json")))


def main() -> int:
    """List the claims of all pages, and return 1 if one has no JSON."""
    counted: Counter[str] = Counter()
    missing = []
    for page in pages():
        for claim in claims(page.read_text("utf-8"), results()):
            said = f"{page.relative_to(ROOT)}:{claim.line}: {claim.text.strip()}"
            if claim.off:
                counted["taken off"] += 1
                print(f"{said}\n    off: {claim.off}")
            elif not claim.files:
                missing.append(said)
            else:
                counted[f"traced by {claim.where}"] += 1
                print(f"{said}\n    {claim.where}: {', '.join(claim.files)}")
                for number, unit in claim.numbers if claim.where != "made" else ():
                    how = {backed(number, unit, _held_by(each)) for each in claim.files}
                    best = next(each for each in ("value", "quotient", "not found") if each in how)
                    counted[f"numbers: {best}"] += 1
                    print(f"    {number} {unit}".rstrip() + f": {best}")
    print(__doc__)
    print("\n".join(f"{what}: {many}" for what, many in sorted(counted.items())))
    print("\n".join([f"without a JSON: {len(missing)}", *missing]))
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
