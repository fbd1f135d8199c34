"""FL-R²SP: groups of clients take turns, evenly apart (R²SP, IV-B2 and Algorithm 2)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from anabranch._typed_toml import Positive, Seconds, Table
from anabranch.pace._collected import (
    LATE_AFTER,
    Collected,
    LateAfter,
    check_fraction,
    who_computes,
)
from anabranch.pace._pace import NEVER_S, Rule, Step, Workers
from anabranch.pace._usual import Average

_Groups = Annotated[int, Meta(ge=1, le=100_000)]  # bounded, as each group has state


class FlR2sp(Table, frozen=True, kw_only=True, tag_field="kind", tag="fl-r2sp"):
    """Clients form groups; a group is synchronous inside, and groups take turns.

    **Inside a group** (TryIntraGroupAggregate) a round ends when ``fraction`` of its clients have
    returned their updates. Later updates are stragglers': they are discarded, and their clients
    proceed with the present model at once. Their next updates belong to the next round.

    **Between groups** (InterGroupAggregate) turns follow a fixed order, no two closer than
    ``relaxation * T / M``. M is the number of groups, and T the moving average of the time that
    their rounds take until enough updates have come. In its turn a group's updates become part of
    the model in one step, which goes an M-th of the way to their mean. Then its clients proceed.
    With less than ``fraction`` of the updates, the step is proportionally smaller.

    **Late groups.** A group without enough updates in its turn holds up the others until it is
    late. Then the step takes the updates that have come. A group without any update is passed over.
    Updates that its clients still compute after a second turn count as stragglers'.

    **Lost clients** are out of their groups: a group has fewer clients then, and enough updates
    once ``fraction`` of these have returned theirs. The paper's count of N stays as it was.

    Args:
        groups: M; groups without a client do not count.
        fraction: the part of a group's clients whose updates end its round, in (0, 1]; the paper's
            C.
        relaxation: of the gap between turns, in [0, 1].
        smoothing: weight of the latest round's time in T, in (0, 1].
        grouping: the group of a client. ``index``: its index modulo M, as in the paper. ``delay``
            (ours): clients that take about as long share a group, in groups of equal size, so that
            no group waits for a few slow clients. ``load``, on the server's port: the same, but a
            group of slower clients has more of them, so that each group brings about as many
            updates a second, unless one client alone brings more. Then a group's step is in
            proportion to its size.
        regroup_every: with ``delay`` or ``load``, clients are grouped anew after this many times M
            turns. A round into which clients moved from other groups does not count in T.
        order: whose turn is next: in a ``fixed`` order (the paper's), or the group that has had
            enough updates for longest (``ready``, ours). Under ``ready`` no two turns are closer
            than ``relaxation / sum(1 / T_g)``, with T_g the moving average of a group's rounds.
            That is relaxation * T / M for equal groups. The port is as busy at all times, and a
            fast group waits for no slow one.
        collects: the updates in a step: all that come before the group's ``turn`` (ours), or only
            those that came until the ``fraction`` was complete (the paper's).
        give_up_after: for how many turns of its group a straggler may compute. Then it abandons its
            update, and proceeds with the present model. A group without any update is then passed
            over when it is late, and that counts as a turn. That time doubles after clients gave up
            and still no round ended. None: a straggler never abandons its update (the paper's).
        deadline_s: the longest that a group's round lasts, seconds, even where its rounds' usual
            time is unknown.
        late_after: a group is late after this many times its rounds' usual time (ours), or at
            ``deadline_s``. ``never``: only at ``deadline_s``, as in lines 4 and 5 of the paper's
            Algorithm 2. Without that, clients that hang but are not lost may hold up all groups.

    Raises:
        ValueError: an argument outside its range.
    """

    groups: _Groups = 8
    fraction: float = 0.75
    relaxation: Annotated[float, Meta(ge=0, le=1)] = 1.0
    smoothing: float = 0.1
    grouping: Literal["index", "delay", "load"] = "index"
    regroup_every: Positive = 4
    order: Literal["fixed", "ready"] = "fixed"
    collects: Literal["fraction", "turn"] = "fraction"
    give_up_after: Positive | None = None
    deadline_s: Seconds | None = None
    late_after: LateAfter = LATE_AFTER
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)
        check_fraction("smoothing", self.smoothing)

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self)

    def staleness_bound(self, workers: int) -> int | None:
        """Return ``2 (workers - 1)``, or ``3 (workers - 1)`` where clients change groups.

        None where turns have no fixed order: other groups may have any number of turns before a
        slow group has one. Otherwise a client sees at most two turns of its group until its update
        counts or is discarded. At the first, the group was passed over, or had enough updates
        before the client proceeded. Each other group has two turns in that time. Where clients
        change groups, another client may move to a group with an earlier turn, and have a third.
        """
        if self.order == "ready":
            return None
        turns = 2 if self.grouping == "index" else 3
        return turns * (workers - 1)


class _Rule:
    """The rule of one run."""

    def __init__(self, pace: FlR2sp) -> None:
        self._pace = pace
        self._workers = Workers()
        self._members: list[dict[int, None]] = [{} for _ in range(pace.groups)]
        self._group: dict[int, int] = {}
        self._finished = [0] * pace.groups  # clients of each group that have made all updates
        self._rounds = [
            Collected(pace.fraction, pace.smoothing, pace.deadline_s, pace.late_after)
            for _ in range(pace.groups)
        ]
        self._late: dict[int, int] = {}  # clients that compute for a past round: turns since then
        # Clients that are not late, and whose group has had a turn since they proceeded.
        self._passed: set[int] = set()
        self._ahead: set[int] = set()  # clients that proceeded between enough updates and the turn
        self._went_s: dict[int, float] = {}
        self._delays: dict[int, Average] = {}
        self._next = 0  # the group whose turn it is, in a fixed order
        self._turns = 0
        self._turned_s = -NEVER_S
        self._round = Average(pace.smoothing)  # T
        self.due_s = NEVER_S

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        group = worker % self._pace.groups
        if self._pace.grouping != "index":
            group = min(range(self._pace.groups), key=lambda each: len(self._members[each]))
        if not self._members[group]:
            self._rounds[group].began_s = now_s
        self._put(worker, group)
        went_on = self._let_go((worker,), now_s)
        self._is_enough(group, now_s)  # the group may need more updates now
        return (Step(proceed=went_on), *self.look(now_s))

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        group = self._group.pop(worker)
        self._finished[group] += has_finished
        del self._members[group][worker], self._went_s[worker]
        self._delays.pop(worker, None)
        self._late.pop(worker, None)
        self._passed.discard(worker)
        self._ahead.discard(worker)
        gone = self._rounds[group].remove(worker)
        self._is_enough(group, now_s)  # the group may need fewer updates now, or have too few
        discarded = (Step(discard=gone),) if gone else ()
        return (*discarded, *self.look(now_s))

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        update = self._workers.push(worker)
        took_s = now_s - self._went_s[worker]
        self._delays.setdefault(worker, Average(self._pace.smoothing)).took(took_s)
        group = self._group[worker]
        is_closed = self._pace.collects == "fraction" and self._rounds[group].enough_s is not None
        if worker in self._late or is_closed:
            went_on = self._let_go((worker,), now_s)
            if is_closed:
                self._ahead.add(worker)
            return (Step((), went_on, (update,)), *self.look(now_s))
        self._rounds[group].add(worker, update)
        self._is_enough(group, now_s)
        return self.look(now_s)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; give the turns that are due."""
        steps: list[Step] = []
        self.due_s = NEVER_S
        while self._goes_on:
            group = self._next if self._pace.order == "fixed" else self._ready_first()
            if not self._members[group]:
                self._pass_on(now_s)
                continue
            due_s = self._turned_s + self.gap_s
            if not self._is_enough(group, now_s):
                due_s = max(due_s, self._rounds[group].late_s(self._round))
            if now_s < due_s:
                self.due_s = due_s
                break
            if self._rounds[group]:
                steps.append(self._turn(group, now_s))
            else:
                given_up = self._pass_over(group, now_s)
                steps += [Step(abandon=given_up)] if given_up else []
            self._pass_on(now_s)
        return tuple(steps)

    @property
    def _goes_on(self) -> bool:
        """Whether a turn may be due: some group has updates, or computing clients may give up."""
        gives_up = self._pace.give_up_after is not None and bool(self._workers.computing)
        return gives_up or any(self._rounds)

    @property
    def _present(self) -> list[int]:
        return [group for group, members in enumerate(self._members) if members]

    def _ready_first(self) -> int:
        """Return the group that has been ready for longest, or will be ready first.

        A group without updates does not count, unless its clients may give up.
        """

        def ready_s(group: int) -> float:
            collected = self._rounds[group]
            if collected.enough_s is not None:
                return collected.enough_s
            return collected.late_s(self._round)

        gives_up = self._pace.give_up_after is not None
        able = [group for group in self._present if gives_up or self._rounds[group]]
        return min(able, key=lambda group: (ready_s(group), group))

    @property
    def gap_s(self) -> float:
        """The least time between two turns."""
        present = self._present
        if self._pace.order == "fixed":
            return self._pace.relaxation * self._round.usual_s / max(1, len(present))
        usual_s = [self._rounds[group].usual.usual_s or self._round.usual_s for group in present]
        turns_a_second = sum(1 / each_s for each_s in usual_s if each_s)
        return self._pace.relaxation / turns_a_second if turns_a_second else 0.0

    def _is_enough(self, group: int, now_s: float) -> bool:
        members = self._members[group]
        # Literally a group waits for stragglers, too, where the others are too few.
        late = () if self._pace.late_after == "never" else self._late
        computing = who_computes(members, self._workers.computing, late)
        return self._rounds[group].is_enough(len(members), len(computing), now_s)

    def _turn(self, group: int, now_s: float) -> Step:
        collected = self._rounds[group]
        took_s = collected.took_s
        if took_s is not None and collected.usual.usual_s:
            self._round.took(took_s)
        elif took_s is not None:
            self._round.took_first(took_s)
        of_each = [len(x) + y for x, y in zip(self._members, self._finished, strict=True)]
        share = collected.part(of_each[group]) / sum(map(bool, of_each))
        if self._pace.grouping == "load":
            share = collected.part(of_each[group]) * of_each[group] / sum(of_each)
        workers = tuple(sorted(collected))
        updates = collected.end(now_s)
        self._turned_s = now_s
        of_next = self._ahead.intersection(self._members[group]) - self._passed
        self._ahead.difference_update(self._members[group])
        self._passed |= of_next
        given_up = self._let_be_late(group, of_next)
        return Step(updates, self._let_go(workers, now_s), abandon=given_up, share=share)

    def _pass_over(self, group: int, now_s: float) -> tuple[int, ...]:
        first = {worker for worker in self._members[group] if worker not in self._passed}
        self._ahead -= first
        given_up = self._let_be_late(group, first)
        self._passed |= first - self._late.keys()
        if self._pace.give_up_after is not None:
            self._rounds[group].wait_anew(now_s, bool(given_up))
        return given_up

    def _let_be_late(self, group: int, on_time: Collection[int]) -> tuple[int, ...]:
        """Mark a group's computing clients as late; return those that must abandon their updates.

        Args:
            group: by index.
            on_time: clients whose update is of the round that begins, if they are not late already.
        """
        late = [
            worker
            for worker in self._members[group]
            if worker in self._workers.computing and (worker in self._late or worker not in on_time)
        ]
        for worker in late:
            self._late[worker] = self._late.get(worker, -1) + 1
        after = self._pace.give_up_after
        return tuple(worker for worker in late if self._late[worker] == after)

    def _pass_on(self, now_s: float) -> None:
        self._turns += 1
        self._next = self._turns % self._pace.groups
        of_all = self._pace.regroup_every * self._pace.groups
        if self._pace.grouping != "index" and self._turns % of_all == 0:
            self._regroup(now_s)

    def _regroup(self, now_s: float) -> None:
        """Group all clients anew, with their updates, by about equal delay."""
        slowest_first = sorted(
            self._group, key=lambda each: (self._delay_s(each), each), reverse=True
        )
        loads = self._loads()
        left = sum(loads.values())
        for group, collected in enumerate(self._rounds):
            if not self._members[group]:
                collected.began_s = now_s
            of_this, load = left / (self._pace.groups - group), 0.0
            while slowest_first and (not load or load + loads[slowest_first[-1]] / 2 < of_this):
                worker = slowest_first.pop()
                load += loads[worker]
                if group != self._group[worker]:
                    self._move(worker, group)
            left -= load
        each, more = divmod(sum(self._finished), self._pace.groups)
        self._finished = [each + (group < more) for group in range(self._pace.groups)]
        for group in self._present:
            self._is_enough(group, now_s)

    def _move(self, worker: int, group: int) -> None:
        before = self._group[worker]
        del self._members[before][worker]
        self._put(worker, group)
        for update in self._rounds[before].remove(worker):
            self._rounds[group].add(worker, update)
        self._rounds[group].is_timed = False

    def _loads(self) -> dict[int, float]:
        """Return each client's load on the port; the groups get equal sums of it."""
        if self._pace.grouping == "delay" or not self._delays:
            return dict.fromkeys(self._group, 1.0)
        usual_s = sum(each.usual_s for each in self._delays.values()) / len(self._delays)
        return {each: usual_s / (self._delay_s(each) or usual_s) for each in self._group}

    def _delay_s(self, worker: int) -> float:
        """Return the usual time of a client's iterations, seconds; 0 where it is unknown."""
        return self._delays[worker].usual_s if worker in self._delays else 0.0

    def _put(self, worker: int, group: int) -> None:
        self._group[worker] = group
        self._members[group][worker] = None

    def _let_go(self, workers: tuple[int, ...], now_s: float) -> tuple[int, ...]:
        for worker in workers:
            self._workers.proceed(worker)
            self._went_s[worker] = now_s
            self._late.pop(worker, None)
            self._passed.discard(worker)
            self._ahead.discard(worker)
        return workers
