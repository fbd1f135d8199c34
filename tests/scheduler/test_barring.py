"""The books while outliers are barred, let in again, lost and back, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from anabranch.cohort import Away, Clients, Registry
from anabranch.merge import OutlierFilter
from anabranch.net.messages import Agreed
from anabranch.pace import Asp, Equal, FedAvg, FedBuff, FlR2sp, Pace, Update
from anabranch.scheduler.decisions import Decision
from anabranch.scheduler.pacing import PaceBook

from ..seeds import seeds

NEVER = float("inf")
PACES: list[Pace] = [
    Asp(share=0.5),
    FedBuff(size=2),
    FedAvg(fraction=0.6),
    FedAvg(sample=0.5, give_up_after=1, deadline_s=5.0),
    FlR2sp(groups=2, fraction=0.5),
    FlR2sp(groups=2, collects="turn", grouping="delay", regroup_every=1),
    FlR2sp(groups=2, give_up_after=1, deadline_s=4.0),
]


@dataclass
class Run:
    """A book, and all that sites would do with what it says; nothing of it has happened yet.

    Args:
        book: nothing has begun.
        servers: that hold the model.

    Attributes:
        to_do: what may happen next, in any order.
        told: what the book was told, and answered.
        settled: how often each update was applied or discarded.
        went: updates that workers were let compute.
        clients: for whom, where workers stand for some.
        barred: workers, or clients, that take no part now.
        bars, readmissions: how often that began, and ended.
    """

    book: PaceBook
    servers: Sequence[int] = (9,)
    now_s: float = 0.0
    to_do: list[tuple[Any, ...]] = field(default_factory=list)
    told: list[tuple[tuple[Any, ...], tuple[Decision, ...]]] = field(default_factory=list)
    settled: Counter[Update] = field(default_factory=Counter)
    went: list[Update] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    barred: set[int] = field(default_factory=set)
    abandoned: set[Update] = field(default_factory=set)
    clients: dict[Update, int] = field(default_factory=dict)
    bars: int = 0
    readmissions: int = 0

    def __post_init__(self) -> None:
        self.tell("begin")

    def tell(self, what: str, *about: Any) -> None:
        """Tell the book something, and let sites do what follows."""
        answer = tell(self.book, what, *about, now_s=self.now_s)
        self.told.append(((what, *about, self.now_s), answer))
        for decision in answer:
            self._follow(decision)

    def _follow(self, decision: Decision) -> None:
        self.abandoned.update(decision.abandoned)
        for update in [*(each.update for each in decision.applied), *decision.discarded]:
            self.settled[update] += 1
            assert self.settled[update] == 1, f"{update} is settled twice"
            assert update in self.went
        if decision.applied:
            updates = tuple(each.update for each in decision.applied)
            self.to_do += [("agreed", server, updates) for server in self.servers]
        for each in decision.permissions:
            update = each.worker, each.update
            assert each.worker not in self.lost
            assert update not in self.went
            self.went.append(update)
            if each.client is None:
                assert each.worker not in self.barred
            else:
                computed = {about[-2:] for _, *rest in self.to_do if (about := tuple(rest))}
                busy = {
                    of
                    for made, of in self.clients.items()
                    if made in computed and not self.settled[made]
                }
                assert each.client not in busy
                clients = self.book._clients  # type: ignore[attr-defined]
                if each.client in self.barred:
                    assert len(busy | self.barred) == clients.registry.registered
                self.clients[update] = each.client
            self.to_do.append(("asked", *update))
            self.to_do += [("came", server, *update) for server in self.servers]
        for who in decision.barred:
            assert who not in self.barred
            self.barred.add(who)
            self.bars += 1
        for who in decision.readmitted:
            self.barred.remove(who)
            self.readmissions += 1

    def lose(self, worker: int) -> None:
        self.lost.add(worker)
        self.to_do = [
            each
            for each in self.to_do
            if not (each[0] == "asked" and each[1] == worker)
            and not (each[0] == "came" and each[2] == worker)
        ]
        self.tell("lost", worker)

    def join(self, worker: int) -> None:
        self.lost.remove(worker)
        self.tell("joined", worker)

    def happen(self, which: int, cosine: float) -> None:
        """Let one thing happen of what may."""
        what, *about = self.to_do.pop(which)
        if what == "agreed":
            server, updates = about
            dots = tuple(cosine if update[0] % 2 else 1.0 for update in updates)
            told = Agreed(updates, dots, (1.0,) * len(updates), 1.0)
            for (worker, update), found in self.book.agreed(server, told):
                self.tell("judged", worker, update, found)
        elif what == "came" and tuple(about[1:]) in self.abandoned and which % 2:
            pass  # it was abandoned before it was pushed
        else:
            self.tell(what, *about)

    def goes_on(self) -> bool:
        """Let time pass until the pace looks, if nothing else is left to happen."""
        if self.to_do:
            return True
        if self.book.due_s == NEVER or self.book.standing.is_over:
            return False
        self.now_s = max(self.now_s, self.book.due_s)
        self.tell("look")
        return True


def tell(book: PaceBook, what: str, *about: Any, now_s: float) -> tuple[Decision, ...]:
    match what:
        case "begin":
            return book.begin(now_s)
        case "asked":
            return book.asked(*about, 1, 0.1, now_s)
        case "came":
            return book.came(*about, now_s)
        case "judged":
            return book.judged(*about, now_s)
        case "lost":
            return book.lost(*about, now_s)
        case "joined":
            return book.joined(*about, now_s)
        case "look":
            return book.look(now_s)
        case _:
            book.close()
            return ()


def make(
    pace: Pace,
    workers: int,
    updates: int,
    rule: OutlierFilter | None,
    servers: Sequence[int] = (9,),
    clients: Clients | None = None,
) -> PaceBook:
    registry = None if clients is None else Registry(clients, 3)
    sites = range(workers)
    return PaceBook(pace, Equal(1), sites, servers, updates, merge=rule, registry=registry)


def try_an_order(pace: Pace, seed: int) -> Run:
    """Let all that may happen do so in an order that is drawn, with losses, returns and a stop."""
    rng = np.random.default_rng(seed)
    workers, updates = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    servers = (8, 9)[: rng.integers(1, 3)]
    clients = None
    if rng.random() < 0.4:
        away = Away(awake_s=2.0, asleep_s=1.0) if rng.random() < 0.5 else None
        clients = Clients(registered=workers + int(rng.integers(1, 5)), away=away)
    rule = OutlierFilter(
        patience=int(rng.integers(1, 3)),
        ends_after=int(rng.integers(1, 6)) if rng.random() < 0.7 else None,
        most=float(rng.choice([0.3, 0.6, 1.0])),
    )
    run = Run(make(pace, workers, updates, rule, servers, clients), servers)
    troubles = rng.random() * 0.15
    stops_at = int(rng.integers(5, 80)) if rng.random() < 0.2 else -1
    for count in range(3000):
        assert count < 2999, "it runs away"
        if rng.random() < 0.3:
            run.now_s += float(rng.exponential())
        if run.book.due_s <= run.now_s and not run.book.standing.is_over:
            run.tell("look")
        if count == stops_at:
            run.tell("stop")
        if rng.random() < troubles:
            here = [worker for worker in range(workers) if worker not in run.lost]
            if run.lost and rng.random() < 0.6:
                run.join(int(rng.choice(sorted(run.lost))))
            elif len(here) > 1:
                run.lose(int(rng.choice(here)))
        assert len(run.barred) <= rule.most * (clients.registered if clients else workers)
        if not run.goes_on():
            break
        if run.to_do:
            run.happen(int(rng.integers(len(run.to_do))), float(rng.choice([-1.0, 0.9])))
    assert run.book.standing.is_over
    left = {update for update in run.went if not run.settled[update]}
    assert not left, f"{left} are never settled"
    fresh = make(pace, workers, updates, rule, servers, clients)
    for (what, *about, now_s), answer in run.told:
        assert tell(fresh, what, *about, now_s=now_s) == answer
    return run


@seeds(1, 8)
@pytest.mark.parametrize("pace", PACES, ids=str)
def test_whatever_the_order_each_update_is_settled_once_and_the_run_ends(
    pace: Pace, seed: int
) -> None:
    runs = [try_an_order(pace, 100 * seed + part) for part in range(100)]
    assert sum(run.bars for run in runs) > 30
    assert any(run.readmissions for run in runs)


def push(run: Run, worker: int, cosine: float = 1.0) -> None:
    """Let a worker ask to go on, all of its update come, and its step be judged."""
    (number,) = [update for each, update in run.went if each == worker][-1:]
    run.tell("asked", worker, number)
    for server in run.servers:
        run.tell("came", server, worker, number)
    for _, server, updates in [each for each in run.to_do if each[0] == "agreed"]:
        told = Agreed(updates, (cosine,) * len(updates), (1.0,) * len(updates), 1.0)
        for update, found in run.book.agreed(server, told):
            run.tell("judged", *update, found)
    run.to_do.clear()


def test_a_worker_that_is_barred_and_then_lost_has_its_update_discarded_once() -> None:
    run = Run(make(Asp(), 3, 9, OutlierFilter(patience=1)))
    push(run, 0, cosine=-1.0)
    assert run.barred == {0}
    assert run.settled[0, 2] == 1
    run.lose(0)
    assert run.settled[0, 2] == 1


def test_who_was_barred_and_lost_waits_after_its_return_until_it_is_let_in_again() -> None:
    run = Run(make(Asp(), 3, 9, OutlierFilter(patience=1, ends_after=2)))
    push(run, 0, cosine=-1.0)
    run.lose(0)
    run.join(0)
    push(run, 1)
    assert run.went[-1] == (1, 2)
    push(run, 2)
    assert run.barred == set()
    assert (0, 3) in run.went


def test_who_is_found_out_after_it_was_lost_is_told_of_and_stays_out_when_it_is_back() -> None:
    run = Run(make(Asp(), 3, 9, OutlierFilter(patience=1, ends_after=2)))
    run.tell("asked", 0, 1)
    run.tell("came", 9, 0, 1)
    run.lose(0)
    run.tell("judged", 0, 1, -1.0)
    assert run.barred == {0}
    run.join(0)
    assert run.went[-1] == (0, 2)  # before it was lost


def test_a_barred_worker_is_let_in_once_it_has_heard_that_its_update_is_given_up() -> None:
    run = Run(make(Asp(), 2, 9, OutlierFilter(patience=1, ends_after=1, most=0.5)))
    push(run, 0, cosine=-1.0)
    push(run, 1)
    assert run.barred == {0}  # it has yet to ask
    run.tell("asked", 0, 2)
    assert run.barred == set()
    assert run.went[-1] == (0, 3)


def test_a_run_is_not_over_before_the_verdict_that_lets_somebody_in_again() -> None:
    run = Run(make(Asp(), 2, 3, OutlierFilter(patience=1, ends_after=1, most=0.5)))
    push(run, 0, cosine=-1.0)
    run.tell("asked", 0, 2)
    for number in (1, 2, 3):
        run.tell("asked", 1, number)
        run.tell("came", 9, 1, number)
    assert not run.book.standing.is_over  # no worker computes, but updates are to be judged
    for number in (1, 2, 3):
        run.tell("judged", 1, number, 1.0)
    assert run.went[-1] == (0, 3)
    assert run.barred == set()
    assert not run.book.standing.is_over


def test_once_all_are_barred_the_run_is_over() -> None:
    run = Run(make(FedAvg(), 2, 9, OutlierFilter(patience=1)))
    for worker in (0, 1):
        run.tell("asked", worker, 1)
        run.tell("came", 9, worker, 1)
    for worker in (0, 1):
        run.tell("judged", worker, 1, -1.0)
    assert run.book.standing.is_over


@pytest.mark.parametrize("rule", [OutlierFilter(), None])
def test_one_client_more_than_workers_is_enough(rule: OutlierFilter | None) -> None:
    """Those whose updates are in this step may be drawn with it, for there are no others."""
    workers = 4
    clients = Clients(registered=workers + 1)
    run = Run(make(FedAvg(), workers, 9, rule, clients=clients))
    for number in range(1, 9):
        for worker in range(workers):
            run.tell("asked", worker, number)
            run.tell("came", 9, worker, number)  # and judged later
    assert len(run.went) == workers * 9


def test_a_client_that_is_to_be_judged_is_drawn_only_if_there_is_no_other() -> None:
    run = Run(make(Asp(), 1, 40, OutlierFilter(), clients=Clients(registered=8)))
    for number in range(1, 8):
        run.tell("asked", 0, number)
        run.tell("came", 9, 0, number)
    assert len({run.clients[0, number] for number in range(1, 9)}) == 8


def test_a_worker_that_is_back_is_not_taken_for_the_barred_client_of_its_number() -> None:
    clients = Clients(registered=40)
    run = Run(make(Asp(), 3, 90, OutlierFilter(patience=1), clients=clients))
    while not run.barred & {0, 1, 2}:
        push(run, 0, cosine=-1.0)
    [worker] = run.barred & {0, 1, 2}
    run.lose(worker)
    before = len(run.went)
    run.join(worker)
    assert [each for each, _ in run.went[before:]] == [worker]


def test_where_all_are_barred_the_one_that_is_there_and_was_barred_first_is_let_in() -> None:
    run = Run(make(Asp(), 3, 9, OutlierFilter(patience=1, ends_after=9)))
    push(run, 0, cosine=-1.0)
    run.lose(0)
    push(run, 1, cosine=-1.0)
    push(run, 2, cosine=-1.0)
    assert run.barred == {0, 1, 2}
    assert not run.book.standing.is_over
    run.tell("asked", 1, 2)
    assert run.barred == {0, 2}
    assert run.went[-1] == (1, 3)


def test_where_all_clients_are_barred_the_first_is_let_in() -> None:
    rule = OutlierFilter(patience=1, ends_after=9)
    run = Run(make(Asp(), 1, 9, rule, clients=Clients(registered=2)))
    for _ in range(3):
        push(run, 0, cosine=-1.0)
    assert (run.bars, run.readmissions) == (2, 1)
    assert run.book.standing.idle == ()
    assert len(run.went) == 4
