"""What a report says in sentences: the verdict, its reason, and what to mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from anabranch.record import units
from anabranch.record._runs import Run, bottleneck, is_star


def verdict(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """Return the title, plain text, and the paragraphs below it, HTML."""
    if any(run.summary.pace is not None for run in runs):
        return _verdict_on_paces(runs)
    timed = {run.name: s for run in runs if (s := run.summary.median_round_s) is not None}
    measured = [run for run in runs if run.name in timed]
    if not measured:
        return "No round was completed", ["There is nothing to compare yet."]
    if len({run.work for run in measured}) > 1:
        return (
            f"{len(runs)} runs of different work",
            [
                "These runs differ in their overlay, in the size of their buffer, or in whether "
                "links were held to their rates, so their round times do not compare. Each is "
                "described on its own below."
            ],
        )
    fastest = min(measured, key=lambda run: timed[run.name])
    slowest = max(measured, key=lambda run: timed[run.name])
    stars = [run for run in measured if is_star(run.plan) and run is not fastest]
    baseline = stars[0] if stars else slowest
    best_s, base_s = timed[fastest.name], timed[baseline.name]
    if baseline is fastest or best_s <= 0:
        title = f"{fastest.name}: {units.seconds(best_s)} a round"
        words = [
            f"<strong>{escape(fastest.name)}</strong> takes {units.seconds(best_s)} a round "
            f"(median of {units.count(len(fastest.summary.rounds), 'round')})."
        ]
    else:
        title = f"{fastest.name}: {units.times(base_s / best_s)} as fast as {baseline.name}"
        words = [
            f"<strong>{escape(fastest.name)}</strong> takes {units.seconds(best_s)} a round, "
            f"<strong>{escape(baseline.name)}</strong> {units.seconds(base_s)} (medians of "
            f"{len(fastest.summary.rounds)} and {len(baseline.summary.rounds)} rounds)."
        ]
    words.append(_why([baseline, fastest] if baseline is not fastest else [fastest]))
    share = fastest.summary.share_of_limit
    if share is not None:
        words.append(
            f"No plan on this overlay can finish a round in less than "
            f"{units.seconds(fastest.summary.started.limit_s)}; {escape(fastest.name)} reaches "
            f"<strong>{units.percent(share)}</strong> of that physical limit."
        )
    return title, words


def _verdict_on_paces(runs: Sequence[Run]) -> tuple[str, list[str]]:
    words = []
    for run in runs:
        pace = run.summary.pace
        if pace is None and run.summary.median_interval_s is not None:
            words.append(
                f"<strong>{escape(run.name)}</strong> all-reduces: a round every "
                f"{units.seconds(run.summary.median_interval_s)} (median)."
            )
            continue
        if pace is None or pace.iteration_s is None:
            words.append(f"<strong>{escape(run.name)}</strong> completed no iteration.")
            continue
        words.append(
            f"Under <strong>{escape(run.name)}</strong> a worker goes on every "
            f"{units.seconds(pace.iteration_s)}, of which it waits {units.seconds(pace.blocked_s)} "
            f"for permission. {units.count(pace.updates, 'update')} became part of the model; one "
            f"missed {max(pace.missed, default=0)} of others at most."
        )
    first = runs[0].summary.pace
    title = "No iteration was completed"
    if first is not None and first.iteration_s is not None:
        title = f"{runs[0].name}: {units.seconds(first.iteration_s)} an iteration"
    return title, words


def endings(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that ended early on purpose, HTML."""
    return [
        f"{escape(run.name)} ended early, on purpose: {escape(run.summary.reason)}."
        for run in runs
        if run.summary.reason is not None
    ]


def _why(runs: Sequence[Run]) -> str:
    """Return the sentences that name each plan's busiest link, HTML."""
    sentences = ["A round cannot end before its busiest link has carried its load."]
    for run in runs:
        link = bottleneck(run.overlay, run.plan)
        if link is not None:
            buffer_bytes = run.summary.started.buffer_bytes
            sentences.append(
                f"Under {escape(run.name)} that is "
                f'<span class="nowrap">{escape(link.name)}</span>, which carries '
                f"{units.buffers(link.load)} ({units.size(link.load * buffer_bytes)}) at "
                f"{units.rate(link.rate_bps)}: {units.seconds(link.seconds(buffer_bytes))}."
            )
    return " ".join(sentences)


def kicker(runs: Sequence[Run]) -> str:
    """Return the line above the title, plain text: what ran."""
    first = runs[0]
    worlds = Counter(sorted(run.summary.started.world for run in runs))
    del worlds["local"]  # goes without saying
    if len(runs) in worlds.values():
        count = units.count(len(runs), f"{first.summary.started.world} run")
    else:
        count = units.count(len(runs), "run")
        if worlds:
            count += f" ({', '.join(f'{number} {world}' for world, number in worlds.items())})"
    if len({run.work for run in runs}) > 1:
        return count
    return (
        f"{count} on overlay {first.overlay.name}: "
        f"{units.count(first.overlay.size, 'site')}, {len(first.overlay.links)} directed links, "
        f"a buffer of {units.size(first.summary.started.buffer_bytes)}"
    )


def header(title: str, paragraphs: Iterable[str], kicker: str) -> str:
    """Return the head of a page: the paragraphs are HTML, the rest plain text."""
    words = "\n".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return (
        f'<header><p class="kicker">{escape(kicker)}</p>\n'
        f"<h1>{escape(title)}</h1>\n{words}</header>"
    )


def problems(runs: Sequence[Run], others: Iterable[str] = ()) -> str:
    """Return what a reader must know before trusting the figures; nothing where all is well.

    Args:
        runs: whose problems to name.
        others: further problems, plain text, without a full stop.
    """
    found = [f"{run.name}: {problem}." for run in runs for problem in _problems_of(run)]
    found += [f"{problem}." for problem in others]
    if not found:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in found)
    return f'<h2>Mind</h2><div class="card problems"><ul>{items}</ul></div>'


def _problems_of(run: Run) -> list[str]:
    summary = run.summary
    found = []
    if summary.error is not None:
        found.append(f"the run ended with an error: {summary.error}")
    if not summary.ended:
        found.append(
            f"the log stops at {units.seconds(summary.total_s)} without an end: the run is still "
            "going or was killed"
        )
    found += [
        f"{run.site(lost.site)} was lost at {units.seconds(lost.at_s)}: {lost.detail}"
        for lost in summary.lost
        if lost.detail != summary.error
    ]
    found += [
        f"{run.site(back.site)} took part again from {units.seconds(back.at_s)} on"
        for back in summary.returned
    ]
    if summary.faults:
        kinds = units.tally(Counter(fault.fault for fault in summary.faults if not fault.over))
        found.append(f"a script injected faults, so times include them: {kinds}")
    found += [
        f"the result of round {dispute.round} is not the same everywhere: "
        f"{', '.join(run.site(site) for site in dispute.sites)} differ from the others"
        for dispute in summary.disputes
    ]
    by_site = {each.site: (each.strands, each.why) for each in summary.transports}
    chosen = Counter(by_site.values())
    found += [
        f"the lanes of {units.count(sites, 'site')} have "
        f"{units.count(strands, 'connection')} each, because {why}"
        for (strands, why), sites in sorted(chosen.items())
    ]
    if summary.refused:
        found.append(f"messages were refused: {units.tally(summary.refused)}")
    if summary.unknown:
        found.append(f"events of another release are left out: {units.tally(summary.unknown)}")
    if not summary.started.shaped:
        found.append(
            "links were not held to the overlay's rates, so predictions and the physical limit do "
            "not apply"
        )
    return found
