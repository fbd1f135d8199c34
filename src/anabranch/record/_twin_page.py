"""What a twin's report says: its verdict, its tables, and a section for each route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from anabranch.record import _page, _words, units
from anabranch.record._runs import Run, distinct, read
from anabranch.record.log import LogError
from anabranch.record.twin import AGREEMENT, TwinRow, compare, median_error, worst_row


@dataclass(frozen=True)
class Twin:
    """One route in both worlds.

    Args:
        name: unlike that of every other route in the report.
        simulated, measured: the runs.
        row: how they compare.
    """

    name: str
    simulated: Run
    measured: Run
    row: TwinRow

    @property
    def runs(self) -> tuple[Run, Run]:
        """Both runs, named after the route and their world."""
        return (
            replace(self.simulated, name=f"{self.name}, simulated"),
            replace(self.measured, name=f"{self.name}, measured"),
        )


def read_twins(pairs: Sequence[tuple[Path, Path]]) -> list[Twin]:
    """Read pairs of logs, simulated and measured.

    Raises:
        LogError: a log cannot be read, or the two of a pair do not compare.
    """
    twins = []
    for simulated_log, measured_log in pairs:
        simulated, measured = read(simulated_log), read(measured_log)
        try:
            row = compare(simulated.summary, measured.summary)
        except ValueError as error:
            raise LogError(f"{simulated_log} and {measured_log}: {error}") from error
        twins.append(Twin(row.label, simulated, measured, row))
    names = distinct(twin.name for twin in twins)
    return [replace(twin, name=name) for name, twin in zip(names, twins, strict=True)]


def kicker(twins: Sequence[Twin]) -> str:
    """Return the line above the title, plain text."""
    emulated = all(twin.measured.summary.started.world == "emulated" for twin in twins)
    links = " over emulated links" if emulated else ""
    count = f"{units.count(len(twins), 'route')}, simulated and measured{links}"
    first = twins[0].simulated
    if any(twin.simulated.work != first.work for twin in twins):
        return count
    return (
        f"{count}, on overlay {first.overlay.name}: {units.count(first.overlay.size, 'site')}, "
        f"{len(first.overlay.links)} directed links, a buffer of "
        f"{units.size(first.summary.started.buffer_bytes)}"
    )


def verdict(twins: Sequence[Twin]) -> tuple[str, list[str]]:
    """Return the title, plain text, and the paragraphs below it, HTML."""
    rows = [replace(twin.row, label=twin.name) for twin in twins]
    worst, middle = worst_row(rows), median_error(rows)
    if worst is None or worst.error is None:
        return "Nothing to compare", ["No route completed a round in both worlds."]
    timed = [row for row in rows if row.error is not None]
    far = [row for row in timed if not row.agrees]
    bound = units.percent(AGREEMENT)
    if far:
        title = (
            f"Not within {bound}: {worst.label} takes {_ratio(worst)} its simulated time per round"
        )
    elif len(rows) == 1:
        title = f"{worst.label}: simulated and measured within {units.percent(worst.error)}"
    else:
        which = f"all {len(rows)}" if len(timed) == len(rows) else f"{len(timed)} of {len(rows)}"
        title = f"Simulated and measured within {units.percent(worst.error)} on {which} routes"
    words = [_errors(worst, middle, timed, far), *_missing(rows), _bytes(rows)]
    spread = _spread(next(twin for twin in twins if twin.name == worst.label))
    return title, [sentence for sentence in (*words[:1], spread, *words[1:]) if sentence]


def _errors(
    worst: TwinRow, middle: float | None, timed: Sequence[TwinRow], far: Sequence[TwinRow]
) -> str:
    bound = units.percent(AGREEMENT)
    times = (
        f"simulated {units.seconds(worst.simulated_s)} a round, measured "
        f"{units.seconds(worst.measured_s)}"
    )
    name = f"<strong>{escape(worst.label)}</strong>"
    if len(timed) == 1:
        judged = "more" if far else "not more"
        text = f"{name}: {times}. The error is {units.percent(worst.error)}, {judged} than {bound}."
    else:
        judged = (
            f"{len(far)} of {len(timed)} routes are more than {bound} apart"
            if far
            else f"every route is within {bound}"
        )
        text = (
            f"The worst error is <strong>{units.percent(worst.error)}</strong>, that of {name} "
            f"({times}); the median over {len(timed)} routes is {units.percent(middle)}; {judged}."
        )
    return (
        f"{text} An error is how far a route's median measured time per round is from its median "
        "simulated one, as a share of the simulated one."
    )


def _spread(twin: Twin) -> str:
    """Return how the ratio changes from round to round."""
    simulated, measured = (
        dict(zip((done.round for done in run.rounds), run.interval_s, strict=True))
        for run in (twin.simulated.summary, twin.measured.summary)
    )
    ratios = {
        number: measured[number] / took_s
        for number, took_s in simulated.items()
        if number in measured and took_s > 0
    }
    if len(set(ratios.values())) < 2:
        return ""
    low, high = min(ratios, key=lambda r: ratios[r]), max(ratios, key=lambda r: ratios[r])
    return (
        f"Round by round, {escape(twin.name)} measured between {units.times(ratios[low])} "
        f"(round {low}) and {units.times(ratios[high])} (round {high}) the simulated time."
    )


def _missing(rows: Sequence[TwinRow]) -> list[str]:
    names = [escape(row.label) for row in rows if row.error is None]
    if not names:
        return []
    return [f"Without a completed round in both worlds, and so not compared: {', '.join(names)}."]


def _bytes(rows: Sequence[TwinRow]) -> str:
    differ = [escape(row.label) for row in rows if row.bytes_agree is False]
    if differ:
        return (
            "<strong>Links did not carry the same in both worlds</strong> under "
            f"{', '.join(differ)}: see the links listed below."
        )
    if all(row.bytes_agree for row in rows):
        return "Every link carried exactly the same number of payload bytes in both worlds."
    return "Not every log says what links carried, so not all payloads could be compared."


def _ratio(row: TwinRow) -> str:
    ratio = row.measured_over_simulated
    return units.NONE if ratio is None else f"{ratio:.3f}{units.TIMES}"


def problems(twins: Sequence[Twin]) -> str:
    """Return what a reader must know first; nothing where all is well."""
    return _words.problems([run for twin in twins for run in twin.runs], _unlike(twins))


def _unlike(twins: Sequence[Twin]) -> list[str]:
    return [
        f"{twin.name}: the simulated run completed {units.count(row.simulated_rounds, 'round')} "
        f"and the measured one {row.measured_rounds}, so their totals are not of the same work"
        for twin in twins
        for row in (twin.row,)
        if row.simulated_rounds != row.measured_rounds
    ]


def results(twins: Sequence[Twin]) -> str:
    """Return the table of routes."""
    rows = [
        (
            twin.name,
            units.seconds(row.simulated_s),
            units.seconds(row.measured_s),
            _ratio(row),
            units.percent(row.error),
            {None: units.NONE, True: "yes", False: "NO"}[row.agrees],
            units.seconds(row.predicted_s),
            f"{row.simulated_rounds} and {row.measured_rounds}"
            if row.simulated_rounds != row.measured_rounds
            else str(row.simulated_rounds),
            _payload(row),
            _checksums(row),
        )
        for twin in twins
        for row in (twin.row,)
    ]
    headings = (
        "route",
        "simulated, a round",
        "measured, a round",
        "measured / simulated",
        "error",
        f"within {units.percent(AGREEMENT)}",
        "predicted",
        "rounds",
        "payload",
        "checksums",
    )
    return _page.section(
        "Both worlds, route by route",
        "Medians over all completed rounds, from the end of one to the end of the next; the "
        "prediction is of the exchange alone. Payload is equal where each link's bytes over the "
        "whole run are. Checksums tell whether all sites ended each round with "
        "the same result, and whether that was the same in both worlds.",
        _page.table(headings, rows, numbers=(1, 2, 3, 4, 6, 7)),
    )


def _payload(row: TwinRow) -> str:
    if row.bytes_agree is None:
        return "not recorded"
    if row.bytes_agree:
        return f"equal, {units.size(row.simulated_bytes)}"
    return f"DIFFERS on {units.count(len(row.differing_links), 'link')}"


def _checksums(row: TwinRow) -> str:
    if row.checksums_agree is None:
        return "not recorded"
    if not row.checksums_agree:
        return "DIFFER between sites"
    across = {None: "", True: ", and in both worlds", False: "; other values in each world"}
    return f"equal on all sites{across[row.same_results]}"


_LISTED_LINKS = 40


def differing_links(twins: Sequence[Twin]) -> str:
    """Return the links that did not carry the same in both worlds; nothing where all did."""
    rows = []
    for twin in twins:
        links = [
            (pair, ours, theirs) for pair, (ours, theirs) in twin.row.differing_links.items()
        ] * (twin.row.bytes_recorded)
        links.sort(key=lambda link: -abs(link[1] - link[2]))
        rows += [
            (
                twin.name,
                f"{twin.simulated.site(source)} → {twin.simulated.site(target)}",
                f"{ours:,}",
                f"{theirs:,}",
                f"{theirs - ours:+,}",
            )
            for (source, target), ours, theirs in links[:_LISTED_LINKS]
        ]
        if more := len(links) - _LISTED_LINKS:
            rows += [(twin.name, f"and {more} more", "", "", "")] if more > 0 else []
    if not rows:
        return ""
    return _page.section(
        "Links that did not carry the same",
        "Payload over the whole run, largest difference first. The worlds ran the same code, so a "
        "difference means that they did not do the same work.",
        _page.table(
            ("route", "link", "simulated, bytes", "measured, bytes", "difference"),
            rows,
            numbers=(2, 3, 4),
        ),
    )


def overview(twins: Sequence[Twin]) -> str:
    """Return the figure of all routes' errors; nothing for a single route."""
    from anabranch.record import _twin_figures, figures

    timed = [(twin.name, twin.row) for twin in twins if twin.row.error is not None]
    if len(timed) < 2:
        return ""
    return _page.section(
        "How far apart",
        "Right of the middle, measured rounds took longer than simulated ones.",
        _page.card(figures.to_html(_twin_figures.errors(timed), "errors")),
    )


def routes(twins: Sequence[Twin]) -> list[str]:
    """Return a section for each route, with its figures."""
    from anabranch.record import _twin_figures, figures

    sections = []
    for index, twin in enumerate(twins):
        simulated, measured = twin.simulated.summary, twin.measured.summary
        links = _twin_figures.busiest_links(
            simulated, measured, twin.simulated.overlay, twin.simulated.plan
        )
        row = twin.row
        sections.append(
            _page.section(
                twin.name,
                f"Simulated {units.seconds(row.simulated_s)} a round, measured "
                f"{units.seconds(row.measured_s)}: {_ratio(row)}.",
                _page.grid(
                    _page.card(
                        figures.to_html(
                            _twin_figures.timeline(simulated, measured), f"timeline-{index}"
                        ),
                        "Over time and over rounds",
                        "A dot ends a round.",
                    ),
                    _page.card(
                        figures.to_html(links, f"links-{index}")
                        if links
                        else '<p class="missing">No link is used, or neither log says what links '
                        "carried.</p>",
                        "The busiest links under this plan",
                        "Payload given to each link, as a share of what its rate allows; means "
                        "over whole rounds where those are short.",
                    ),
                ),
            )
        )
    return sections
