"""How well the two worlds agree: one route simulated, and the same route measured. Pure.

A route's error is ``|measured / simulated - 1|``, of the median times per round over all completed
rounds of each run. The time per round runs from the end of one round to the end of the next, so it
includes computing and waiting. The simulated time is the reference, since it is a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from anabranch.log import units
from anabranch.log.summary import RunSummary

AGREEMENT = 0.10  # the worlds agree on a route whose error is at most this

# These fields must be equal if two runs are one run in two worlds.
_SAME = (
    "sites",
    "overlay_toml",
    "plan_json",
    "buffer_bytes",
    "chunk_elements",
    "task",
    "model",
    "seed",
)


@dataclass(frozen=True, slots=True)
class TwinRow:
    """One route in both worlds."""

    label: str  # the route's name
    simulated_s: float | None  # median time per round; None where no round was completed
    measured_s: float | None
    predicted_s: float  # the round time predicted with contention on links, seconds
    simulated_rounds: int  # completed
    measured_rounds: int
    simulated_bytes: int  # payload over all links in the whole run
    measured_bytes: int
    # By (source, target), the simulated and the measured payload of each link whose payloads
    # differ, bytes. Runs that ended after different numbers of rounds differ here too.
    differing_links: Mapping[tuple[int, int], tuple[int, int]]
    bytes_recorded: bool  # whether both logs have the links' bytes
    # Whether every checked round ended alike on all sites, in both worlds; None if one world
    # checked no round.
    checksums_agree: bool | None
    # Whether each round checked in both worlds ended with the same checksum in both; None: no such
    # round. The last bits of sums depend on the order in which parts arrive, so False is no fault
    # where the order may differ.
    same_results: bool | None

    @property
    def measured_over_simulated(self) -> float | None:
        """The measured time per round over the simulated one; None where either is missing."""
        if self.measured_s is None or not self.simulated_s:
            return None
        return self.measured_s / self.simulated_s

    @property
    def error(self) -> float | None:
        """The difference of the measured and simulated times per round, over the simulated one."""
        ratio = self.measured_over_simulated
        return None if ratio is None else abs(ratio - 1)

    @property
    def agrees(self) -> bool | None:
        """Whether the error is at most `AGREEMENT`; None where there is none."""
        return None if self.error is None else self.error <= AGREEMENT

    @property
    def bytes_agree(self) -> bool | None:
        """Whether each link carried exactly as much in both worlds; None where not recorded."""
        return not self.differing_links if self.bytes_recorded else None


def compare(simulated: RunSummary, measured: RunSummary) -> TwinRow:
    """Compare a measured run with the simulated one.

    Raises:
        ValueError: the first is not simulated, the second is simulated or was not held to the
            overlay's rates, or the two are not runs of one scenario.
    """
    if not simulated.simulated or measured.simulated:
        raise ValueError(
            f"a twin is a simulated run and a measured one, in this order, and these are "
            f"{simulated.started.world} and {measured.started.world}"
        )
    if measured.started.shaped and not measured.links_held:
        raise ValueError(
            f"the relay of the emulated links was {units.percent(measured.relay_busy)} busy, so "
            "the measured run says more of this machine than of the overlay; take fewer sites, "
            "lower rates or links without delay"
        )
    if not measured.started.shaped:
        raise ValueError(
            "the measured run did not hold its links to the overlay's rates, so nothing it took "
            "can be compared; run it with shaped links"
        )
    for field in _SAME:
        ours, theirs = getattr(simulated.started, field), getattr(measured.started, field)
        if ours != theirs:
            what = f": {ours} and {theirs}" if len(f"{ours}{theirs}") < 80 else ""
            raise ValueError(
                f"the simulated and the measured run differ in {field}{what}; compare runs of "
                "one scenario"
            )
    carried, sent = simulated.link_bytes, measured.link_bytes
    both = [
        (checksum, measured.checksums[number])
        for number, checksum in simulated.checksums.items()
        if number in measured.checksums
    ]
    return TwinRow(
        label=simulated.label,
        simulated_s=simulated.median_interval_s,
        measured_s=measured.median_interval_s,
        predicted_s=simulated.started.predicted_s,
        simulated_rounds=len(simulated.rounds),
        measured_rounds=len(measured.rounds),
        simulated_bytes=sum(carried.values()),
        measured_bytes=sum(sent.values()),
        differing_links={
            pair: (carried.get(pair, 0), sent.get(pair, 0))
            for pair in sorted(carried.keys() | sent.keys())
            if carried.get(pair, 0) != sent.get(pair, 0)
        },
        bytes_recorded=bool(carried and sent),
        checksums_agree=_all_agree(simulated.checksums_agree, measured.checksums_agree),
        same_results=all(ours == theirs for ours, theirs in both) if both else None,
    )


def _all_agree(*agree: bool | None) -> bool | None:
    if False in agree:
        return False
    return None if None in agree else True


def round_ratios(simulated: RunSummary, measured: RunSummary) -> dict[int, float]:
    """Return measured over simulated time of each round that both completed, by its number."""
    ours, theirs = (
        dict(zip((done.round for done in run.rounds), run.interval_s, strict=True))
        for run in (simulated, measured)
    )
    return {
        number: theirs[number] / took_s
        for number, took_s in ours.items()
        if number in theirs and took_s > 0
    }


def worst_row(rows: Iterable[TwinRow]) -> TwinRow | None:
    """Return the row with the largest error; None where no row has one."""
    timed = [row for row in rows if row.error is not None]
    return max(timed, key=lambda row: row.error or 0.0, default=None)


def median_error(rows: Sequence[TwinRow]) -> float | None:
    """Return the median error over the rows that have one, or None."""
    errors = [row.error for row in rows if row.error is not None]
    return median(errors) if errors else None
