"""A world just big enough for a pace: workers that compute for so long, and what they then see."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anabranch.pace import Applied, Ledger, Pace, Rule, Step, Update


@dataclass
class Story:
    """What happened.

    Args:
        steps: every step, with the moment it was taken.
        applied: every update that became part of the model, in order.
        discarded: every other that came.
        pushed: every update that came, with the moment.
        went: for each worker the moments at which it was let go on.
        told: every call of the pace, as (name, worker, moment, answer).
    """

    steps: list[tuple[float, Step]] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    discarded: list[Update] = field(default_factory=list)
    pushed: dict[Update, float] = field(default_factory=dict)
    went: dict[int, list[float]] = field(default_factory=dict)
    told: list[tuple[str, int | None, float, tuple[Step, ...]]] = field(default_factory=list)


Takes = Callable[[int, int], float]
"""How long a worker takes for its k-th iteration, from 1, seconds; infinite if it never ends."""


def live(
    pace: Pace,
    takes: Takes,
    joins: Sequence[tuple[float, int]],
    leaves: Sequence[tuple[float, int]] = (),
    until_s: float = 100.0,
    compute_s: float = 0.0,
    rule: Rule | None = None,
) -> Story:
    """Let workers join, iterate under a pace, and leave.

    Args:
        pace: which.
        takes: see there.
        joins, leaves: (when, who).
        until_s: when the story ends.
        compute_s: how much of an iteration is computing, as the pace is told.
        rule: the pace's, fresh, to look at afterwards.
    """
    rule = rule or pace.rule()
    story, ledger = Story(), Ledger(pace)
    events: list[tuple[float, int, str, int, int]] = []  # when, order, what, who, of which life
    lives: dict[int, int] = {}
    pushed: dict[int, int] = {}
    here: set[int] = set()
    count = 0

    def plan(at_s: float, what: str, who: int, life: int = 0) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (at_s, count, what, who, life))

    for at_s, who in joins:
        plan(at_s, "join", who)
    for at_s, who in leaves:
        plan(at_s, "leave", who)

    def take(steps: tuple[Step, ...], what: str, who: int | None, now_s: float) -> None:
        story.told.append((what, who, now_s, steps))
        for step in steps:
            story.steps.append((now_s, step))
            story.applied += ledger.enter(step)
            story.discarded += step.discard
            for worker in step.proceed:
                assert worker in here
                story.went.setdefault(worker, []).append(now_s)
                iteration = pushed.get(worker, 0) + 1
                if (seconds := takes(worker, iteration)) < float("inf"):
                    plan(now_s + seconds, "push", worker, lives[worker])
            for worker in step.abandon:
                lives[worker] += 1
                plan(now_s, "push", worker, lives[worker])

    while True:
        next_s = events[0][0] if events else float("inf")
        now_s = min(next_s, rule.due_s)
        if now_s > until_s:
            return story
        if rule.due_s < next_s:
            before_s = rule.due_s
            take(rule.look(now_s), "look", None, now_s)
            assert rule.due_s > before_s, "a look that was due decided nothing"
            continue
        _, _, what, who, life = heapq.heappop(events)
        if what == "join":
            here.add(who)
            ledger.joined()
            lives[who] = lives.get(who, 0) + 1
            take(rule.join(who, now_s), what, who, now_s)
        elif what == "leave":
            here.discard(who)
            ledger.left(who)
            take(rule.leave(who, now_s), what, who, now_s)
        elif who in here and life == lives[who]:
            pushed[who] = pushed.get(who, 0) + 1
            update = who, pushed[who]
            story.pushed[update] = now_s
            ledger.pushed(update)
            take(rule.push(who, now_s, compute_s), what, who, now_s)
