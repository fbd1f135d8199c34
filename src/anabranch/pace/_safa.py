"""SAFA: rounds of the quickest few updates, and of older ones within a lag (Wu et al., 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from anabranch._typed_toml import Seconds, Table
from anabranch.pace._collected import LATE_AFTER, LateAfter, part_of
from anabranch.pace._pace import NEVER_S, Rule, Step, Update, Workers
from anabranch.pace._usual import Average

# A round with enough updates waits this many times a round's usual time for workers that were not
# picked last time, before it picks others.
_PATIENCE = 1.5
_SMOOTHING = 0.1


class Safa(Table, frozen=True, kw_only=True, tag_field="kind", tag="safa"):
    """Semi-asynchronous rounds.

    **Selection** (CFCFM, "compensatory first come first merge"): a round ends when enough updates
    have come from workers that the round before did not pick. If those are too slow, or too few are
    left, it picks others, first come first. A round with too few updates ends when it is late, with
    the updates that have come. Updates beyond the number to pick are
    *undrafted*: they become part of the model in the next round's step. When a round ends, all
    workers whose updates have come proceed.

    **Lag tolerance.** A round does not wait for stragglers. An update that comes at most
    ``lag_tolerance`` rounds late counts in the round in which it comes. When a round ends, the
    workers whose updates would be later are *deprecated*: they abandon them, and proceed with the
    present model at once.

    The paper's server keeps the last model of each client and takes the mean of all. With updates
    in place of models that is their sum, each counted once.

    Args:
        fraction: the part of all workers whose updates a round picks, in (0, 1].
        lag_tolerance: in rounds, >= 0.
        deadline_s: the longest that a round lasts once an update has come, seconds, even where a
            round's usual time is unknown; the paper's T_lim. None for the rules above alone.
        late_after: a round with too few updates is late after this many times a round's usual time
            (ours), or at ``deadline_s``. ``never``: only at ``deadline_s``, as in the paper.

    Raises:
        ValueError: an argument outside its range.
    """

    fraction: float = 0.5
    lag_tolerance: int = 5
    deadline_s: Seconds | None = None
    late_after: LateAfter = LATE_AFTER
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1 or self.lag_tolerance < 0:
            raise ValueError(
                f"fraction is {self.fraction:g} and lag_tolerance {self.lag_tolerance}; give a "
                "fraction in (0, 1] and 0 rounds or more"
            )

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self)

    def staleness_bound(self, workers: int) -> int:
        """Return ``(lag_tolerance + 1) workers``.

        Between a worker's pull and the step with its update are at most ``lag_tolerance + 1``
        rounds' steps, of at most ``workers`` updates each. An undrafted update's own step does not
        count.
        """
        return (self.lag_tolerance + 1) * workers


class _Rule:
    """The rule of one run."""

    def __init__(self, pace: Safa) -> None:
        self._fraction = pace.fraction
        self._lag_tolerance = pace.lag_tolerance
        self._deadline_s = NEVER_S if pace.deadline_s is None else pace.deadline_s
        self._late_after = pace.late_after
        self._workers = Workers()
        self._round = 0
        self._pulled: dict[int, int] = {}  # the round of each worker's last permission
        self._in: dict[int, Update] = {}  # of the round in progress, in order of arrival
        self._undrafted: tuple[Update, ...] = ()  # of the round before
        self._picked: frozenset[int] = frozenset()  # in the round before
        self._began_s = 0.0
        self._round_s = Average(_SMOOTHING)
        self.due_s = NEVER_S

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        return (Step(proceed=self._let_go((worker,))),)

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`.

        An undrafted update stays. It becomes part of the model at the latest when the last worker
        leaves.
        """
        self._workers.leave(worker)
        update = self._in.pop(worker, None)
        discarded = () if update is None else (Step(discard=(update,)),)
        if not len(self._workers) and self._undrafted:
            last, self._undrafted = self._undrafted, ()
            return (*discarded, Step(last))
        return (*discarded, *self.look(now_s))

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        update = self._workers.push(worker)
        if self._round - self._pulled[worker] > self._lag_tolerance:
            return (Step(proceed=self._let_go((worker,)), discard=(update,)),)
        self._in[worker] = update
        return self.look(now_s)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; end the round if it is due."""
        self.due_s = NEVER_S
        wanted = part_of(self._fraction, len(self._workers))
        first = [worker for worker in self._in if worker not in self._picked]
        if not self._in:
            return ()
        until_s = now_s
        if len(self._in) < wanted:
            until_s = self._began_s + self._at_most_s(self._late_after)
            if not self._workers.computing:
                until_s = NEVER_S
        elif len(first) < wanted and self._workers.computing - self._picked:
            # Wait for workers that were not picked last time, until the round is late.
            until_s = self._began_s + self._at_most_s(_PATIENCE)
        if now_s < until_s:
            self.due_s = until_s
            return ()
        return (self._end(first, wanted, now_s),)

    def _at_most_s(self, times: float | Literal["never"]) -> float:
        """Return the longest that a round lasts: a multiple of the usual time, or the deadline."""
        usual_s = self._round_s.usual_s
        if times == "never" or not usual_s:
            return self._deadline_s
        return min(times * usual_s, self._deadline_s)

    def _end(self, first: list[int], wanted: int, now_s: float) -> Step:
        self._round += 1
        self.due_s = NEVER_S
        others = [worker for worker in self._in if worker in self._picked]
        picked = [*first, *others][:wanted]
        step = Step(
            self._undrafted + tuple(self._in[worker] for worker in sorted(picked)),
            self._let_go(tuple(self._in)),
            abandon=self._newly_deprecated(),
        )
        self._undrafted = tuple(self._in[worker] for worker in self._in if worker not in picked)
        self._picked, self._in = frozenset(picked), {}
        self._round_s.took(now_s - self._began_s)
        self._began_s = now_s
        return step

    def _newly_deprecated(self) -> tuple[int, ...]:
        """Return the workers whose updates this round made too late."""
        pulled = self._round - self._lag_tolerance - 1
        return tuple(
            worker for worker in sorted(self._workers.computing) if self._pulled[worker] == pulled
        )

    def _let_go(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        for worker in workers:
            self._workers.proceed(worker)
            self._pulled[worker] = self._round
        return workers
