"""The command that searches for faults that break a contract."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch.cli.commands import app, console, ending_on_interrupt

if TYPE_CHECKING:
    from anabranch_lab.run.explore import Found

_CASES = 50  # that a process runs before it reports them


@app.command()
def explore(
    exchanges: Annotated[
        int | None,
        typer.Option(help="Stop after so many exchanges; 10,000 if --hours is not given.", min=1),
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Stop after so long.", min=0.0)] = None,
    seed: Annotated[int, typer.Option(help="Of the first case.", min=0)] = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Processes at once; one a core if not given.", min=1)
    ] = None,
) -> None:
    """Lose sites and links, add sites and restart the scheduler, in virtual time, and check.

    Whatever is lost, an exchange that ends has the same bits at every site. It is the exact result
    of the contributions that it names. These are the contributions of all sites that stayed.
    Everything ends.
    """
    from anabranch_lab.run.explore import make_case, minimised

    longest_s = math.inf if hours is None else 3600 * hours
    most = exchanges or (10_000 if hours is None else math.inf)
    began_s = time.monotonic()
    with ending_on_interrupt():
        for found in search(seed, jobs or os.cpu_count() or 1):
            took_s = time.monotonic() - began_s
            done = found.exchanges >= most or took_s >= longest_s
            if found.violations or done:
                break
    console.print(
        f"{found.cases} cases from seed {seed}: {found.exchanges} exchanges, {found.repaired} of "
        f"them completed after a loss, {found.lost} sites lost, {found.joined} let in later, the "
        f"scheduler started again {found.restarted} times, in "
        f"{took_s:.0f} s",
        soft_wrap=True,
    )
    for number, violations in found.violations.items():
        console.print(f"seed {number}:", *violations, sep="\n  ", soft_wrap=True)
        case = minimised(make_case(number))
        console.print(f"the smallest case found: {case}", soft_wrap=True)
    if found.violations:
        raise typer.Exit(1)
    console.print("no violation", soft_wrap=True)


def search(first: int, jobs: int) -> Iterator[Found]:
    """Run cases in other processes; yield the outcome of all cases so far, again and again."""
    from anabranch_lab.run.explore import Found, explore_seeds

    found = Found()
    with ProcessPoolExecutor(jobs) as pool:
        pending: set[Future[Found]] = set()
        try:
            while True:
                while len(pending) < 2 * jobs:
                    pending.add(pool.submit(explore_seeds, range(first, first + _CASES)))
                    first += _CASES
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for each in done:
                    found.add(each.result())
                yield found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
