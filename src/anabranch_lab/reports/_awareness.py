"""Measured rates against true ones, changes of plan, and the links that rounds waited for. Pure.

The true rate of a link at a moment is its goodput by the overlay, traces included, or the rate of a
port at its ends, if that is lower. It is known only for runs whose links were held to the overlay's
rates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from anabranch.log.summary import RunSummary
from anabranch.overlay import Link, Overlay
from anabranch.plan import Plan

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """One measurement of a link's rate, against the true rate at that moment."""

    source: int
    target: int
    at_s: float  # when, seconds since the run began
    measured_bps: float  # of payload
    true_bps: float
    # Whether the true rate changed since the link's previous measurement, or since the run began.
    # The measured chunks may then have passed at the rate before the change, so a difference is no
    # error.
    straddles: bool

    @property
    def error(self) -> float:
        """The difference between the measured and the true rate, as a share of the true one."""
        return abs(self.measured_bps / self.true_bps - 1)


def measured_rates(run: RunSummary, overlay: Overlay) -> tuple[MeasuredRate, ...]:
    """Return every measurement of a run beside the true rate, link by link, in order of time.

    The result is empty if the run did not hold its links to the overlay's rates. Measurements of
    links that the overlay lacks are left out.
    """
    if not run.started.shaped:
        return ()
    found = []
    for pair, series in run.measured.items():
        link = overlay.link(*pair)
        if link is None:
            continue
        before_s = 0.0
        for estimate in series:
            found.append(
                MeasuredRate(
                    link.source,
                    link.target,
                    estimate.at_s,
                    estimate.rate_bps,
                    true_rate_bps(overlay, link, estimate.at_s),
                    _pieces_by(link, before_s) != _pieces_by(link, estimate.at_s),
                )
            )
            before_s = estimate.at_s
    return tuple(found)


def _pieces_by(link: Link, at_s: float) -> int:
    return 0 if link.trace is None else bisect_right(link.trace.starts_s, at_s)


def true_rate_bps(overlay: Overlay, link: Link, at_s: float) -> float:
    """Return the rate that a link can carry while its ports carry nothing else, bit/s."""
    rate_bps = link.rate_bps if link.trace is None else link.trace.rate_bps(at_s)
    ports_bps = (overlay.sites[link.source].uplink_bps, overlay.sites[link.target].downlink_bps)
    return min([rate_bps * (1 - link.loss), *(bps for bps in ports_bps if bps is not None)])


def true_steps(overlay: Overlay, link: Link, until_s: float) -> list[tuple[float, float]]:
    """Return (start, rate) of each piece of a link's true rate, up to a moment."""
    starts_s = (0.0,) if link.trace is None else link.trace.starts_s
    return [
        (start_s, true_rate_bps(overlay, link, start_s))
        for start_s in starts_s
        if start_s <= until_s
    ]


def most_changed(run: RunSummary, overlay: Overlay) -> list[Link]:
    """Return the measured links, those whose rate changed by the largest factor first.

    The order follows the true rates, then the measured rates where no true rate changed or is
    known.
    """

    def change(pair: Pair, link: Link) -> tuple[float, float, Pair]:
        steps = true_steps(overlay, link, run.total_s) if run.started.shaped else []
        return (
            -_spread([rate_bps for _, rate_bps in steps]),
            -_spread([estimate.rate_bps for estimate in run.measured[pair]]),
            pair,
        )

    links = {pair: link for pair in run.measured if (link := overlay.link(*pair)) is not None}
    return [links[pair] for pair in sorted(links, key=lambda pair: change(pair, links[pair]))]


def _spread(rates_bps: Sequence[float]) -> float:
    """Return the highest rate over the lowest one."""
    positive = [rate_bps for rate_bps in rates_bps if rate_bps > 0]
    return max(positive) / min(positive) if positive else 1.0


@dataclass(frozen=True, slots=True)
class TreeChange:
    """How one plan's trees differ from another's."""

    trees: int  # how many the new plan has
    added: int  # how many of these the old plan lacks: another root, or another way up or down
    reweighted: int  # how many both plans have, with different shares

    def __str__(self) -> str:
        words = f"{self.added} of {self.trees} new"
        return f"{words}, {self.reweighted} re-weighted" if self.reweighted else words


def tree_change(old: Plan, new: Plan) -> TreeChange:
    """Compare two plans for the same sites.

    >>> from anabranch.plan import Tree
    >>> star = Tree(0, 1.0, (-1, 0), (-1, 0))
    >>> tree_change(Plan(1, (star,)), Plan(2, (Tree(1, 1.0, (1, -1), (1, -1)),)))
    TreeChange(trees=1, added=1, reweighted=0)
    """
    before, after = (_shares(plan) for plan in (old, new))
    return TreeChange(
        trees=len(new.trees),
        added=sum((tree.root, tree.up, tree.down) not in before for tree in new.trees),
        reweighted=sum(
            abs(before[shape] - share) > 1e-6 for shape, share in after.items() if shape in before
        ),
    )


_Shape = tuple[int, tuple[int, ...], tuple[int, ...]]  # a tree's root, way up and way down


def _shares(plan: Plan) -> Mapping[_Shape, float]:
    """Return the share that each shape of tree carries."""
    found: defaultdict[_Shape, float] = defaultdict(float)
    for tree in plan.trees:
        found[tree.root, tree.up, tree.down] += tree.share
    return found


@dataclass(frozen=True, slots=True)
class Blocker:
    """A link on which waiting began."""

    source: int  # neighbours in a tree; see `anabranch.log.Wait`
    target: int
    began: tuple[int, ...]  # the rounds whose waiting began here, in order
    passed_on: int  # in how many more rounds it passed on waiting that began elsewhere
    # The median time of the rounds whose waiting began here, seconds; None: no such round.
    median_s: float | None


def blockers(run: RunSummary) -> tuple[Blocker, ...]:
    """Return every link that a round waited for, the one where most waiting began first."""
    took_s = {done.round: done.seconds for done in run.rounds}
    began: dict[Pair, list[int]] = {}
    passed_on: Counter[Pair] = Counter()
    for wait in run.waits:
        if wait.began is not None:
            began.setdefault(wait.began, []).append(wait.round)
            passed_on.update(wait.links[:-1])
    found = [
        Blocker(
            *pair,
            tuple(began.get(pair, ())),
            passed_on[pair],
            median(took_s[number] for number in began[pair]) if pair in began else None,
        )
        for pair in began.keys() | passed_on.keys()
    ]
    return tuple(sorted(found, key=lambda b: (-len(b.began), -b.passed_on, b.source, b.target)))
