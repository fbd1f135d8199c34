"""FedAvg: rounds of drawn clients, each until enough have returned (McMahan et al., 2017)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from anabranch._typed_toml import Positive, Seconds, Table
from anabranch.pace._collected import (
    LATE_AFTER,
    Collected,
    LateAfter,
    check_fraction,
    part_of,
    who_computes,
)
from anabranch.pace._pace import NEVER_S, Rule, Step, Workers

_SMOOTHING = 0.1


class FedAvg(Table, frozen=True, kw_only=True, tag_field="kind", tag="fedavg"):
    """Synchronous rounds: each draws some clients, and ends when enough of them have returned.

    Later updates are discarded, and their clients wait to be drawn again. A round with too few
    updates ends when it is late, with the updates that it has. A step goes all the way to the mean
    of the updates; where a round has too few, proportionally less far. A lost client is not drawn,
    and no round waits for it.

    Draws are even: in a random order each worker is drawn once before any is drawn again.

    Args:
        sample: the part of the clients drawn for a round, in (0, 1]; at least one client.
        fraction: the part of the drawn clients whose updates end the round, in (0, 1]. The R²SP
            paper calls it the selection rate of BSP, and takes 0.75.
        give_up_after: for how many more rounds a late client may compute; then it abandons its
            update. If no client returns an update, all abandon theirs when the round is late, and
            after twice as long the next time. None: a client never abandons one.
        deadline_s: the longest that a round lasts, seconds, even where a round's usual time is
            unknown.
        late_after: a round is late after this many times a round's usual time (ours), or at
            ``deadline_s``. ``never``: only at ``deadline_s``, as in the paper; without that, one
            client that hangs may hold up all others.
        seed: of the draws.

    Raises:
        ValueError: an argument outside its range.
    """

    sample: float = 1.0
    fraction: float = 1.0
    give_up_after: Positive | None = None
    deadline_s: Seconds | None = None
    late_after: LateAfter = LATE_AFTER
    seed: Annotated[int, Meta(ge=0)] = 0
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fraction("sample", self.sample)
        check_fraction("fraction", self.fraction)

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self)

    def staleness_bound(self, workers: int) -> int:
        """Return 0: updates computed on an older model are discarded."""
        return 0


class _Rule:
    """The rule of one run."""

    def __init__(self, pace: FedAvg) -> None:
        self._pace = pace
        self._workers = Workers()
        self._draw = np.random.default_rng(pace.seed)
        self._deck: list[int] = []  # the order of draws, next at its end
        self._drawn: set[int] = set()  # for the round in progress
        self._finished = 0  # workers that have made all their updates
        self._late: dict[int, int] = {}  # workers that compute for a past round: rounds since then
        self._round = Collected(pace.fraction, _SMOOTHING, pace.deadline_s, pace.late_after)
        self.due_s = NEVER_S

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; a new worker gets a random place in the draws."""
        self._workers.join(worker)
        self._deck.insert(int(self._draw.integers(len(self._deck) + 1)), worker)
        return self.look(now_s)

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        self._finished += has_finished
        self._deck = [each for each in self._deck if each != worker]
        self._drawn.discard(worker)
        self._late.pop(worker, None)
        gone = self._round.remove(worker)
        discarded = (Step(discard=gone),) if gone else ()
        return (*discarded, *self.look(now_s))

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        update = self._workers.push(worker)
        if worker in self._late:
            del self._late[worker]
            return (Step(discard=(update,)), *self.look(now_s))
        self._round.add(worker, update)
        return self.look(now_s)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; end the round if it is due, and begin the next."""
        self.due_s = NEVER_S
        computing = who_computes(self._drawn, self._workers.computing, self._late)
        if not self._round.is_enough(len(self._drawn), len(computing), now_s):
            if not self._round and not computing:
                went_on = self._begin(now_s)
                if went_on:
                    return (Step(proceed=went_on),)
            if not self._round:
                return self._give_all_up(computing, now_s)
            late_s = self._round.late_s()
            if now_s < late_s:
                self.due_s = late_s
                more = self._top_up()
                return (Step(proceed=more),) if more else ()
        for worker in [*self._late, *computing]:
            self._late[worker] = self._late.get(worker, -1) + 1
        after = self._pace.give_up_after
        given_up = tuple(worker for worker, since in self._late.items() if since == after)
        whole = part_of(self._pace.sample, len(self._workers) + self._finished)
        share, updates = self._round.part(whole), self._round.end(now_s)
        return (Step(updates, self._begin(now_s), abandon=given_up, share=share),)

    def _give_all_up(self, computing: list[int], now_s: float) -> tuple[Step, ...]:
        """Draw more clients for a round without updates, or have all abandon their updates."""
        more = self._top_up()
        went_on = (Step(proceed=more),) if more else ()
        if self._pace.give_up_after is None or not (computing or more or self._late):
            return went_on
        if more:
            self._round.began_s = now_s
        late_s = self._round.late_s()
        if now_s < late_s:
            self.due_s = late_s
            return went_on
        given_up = tuple(sorted({*computing, *self._late}))
        self._late.update(dict.fromkeys(given_up, self._pace.give_up_after))
        self._round.wait_anew(now_s, has_given_up=True)
        return (Step(abandon=given_up),)

    def _begin(self, now_s: float) -> tuple[int, ...]:
        """Draw the clients of the next round, and permit their updates."""
        self._drawn = set()
        went_on = self._top_up()
        if went_on:
            self._round.began_s = now_s
            if self._pace.give_up_after is not None:
                self.due_s = self._round.late_s()
        return went_on

    def _top_up(self) -> tuple[int, ...]:
        """Draw waiting clients until the round has its part of all clients, or none waits."""
        wanted = part_of(self._pace.sample, len(self._workers))
        went_on: list[int] = []
        while len(self._drawn) < wanted:
            worker = self._next_of_deck()
            if worker is None:
                break
            self._workers.proceed(worker)
            self._drawn.add(worker)
            went_on.append(worker)
        return tuple(sorted(went_on))

    def _next_of_deck(self) -> int | None:
        """Return the next waiting client that has not pushed in this round, or None."""
        waiting = {worker for worker in self._workers.waiting if worker not in self._round}
        if not waiting:
            return None
        if waiting.isdisjoint(self._deck):
            # The clients left in the deck still compute. They come before all others once they
            # wait again.
            more = sorted({*self._workers.computing, *self._workers.waiting} - {*self._deck})
            self._draw.shuffle(more)
            self._deck = [*more, *self._deck]
        last = next(k for k in reversed(range(len(self._deck))) if self._deck[k] in waiting)
        return self._deck.pop(last)
