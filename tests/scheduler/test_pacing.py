"""The books of a run with servers: what must come before the pace is told, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anabranch.cohort import Clients, Registry
from anabranch.merge import DataSize, Fairness, Product, Staleness
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.pace import Asp, Bsp, Equal, R2sp, Safa, Ssp, Tuned
from anabranch.plan import Group, Plan, Tree
from anabranch.scheduler.decisions import Decision, Permission
from anabranch.scheduler.dependence import led_through, lost_between
from anabranch.scheduler.pacing import PaceBook


def begun(book: PaceBook, now_s: float = 0.0) -> PaceBook:
    book.begin(now_s)
    return book


def test_all_workers_begin_with_their_first_update() -> None:
    book = PaceBook(Asp(), Equal(32), (0, 1), (2,), 5)
    assert [decision.permissions for decision in book.begin(0.0)] == [
        (Permission(0, 1, 32, False),),
        (Permission(1, 1, 32, False),),
    ]


def test_the_first_to_pull_after_a_time_looks_at_the_model() -> None:
    book = begun(PaceBook(Asp(), Equal(32), (0, 1), (2,), 9, look_every_s=1.0))
    looks = []
    for worker, update, now_s in [(0, 1, 0.4), (1, 1, 0.9), (0, 2, 2.1), (1, 2, 2.9), (0, 3, 3.0)]:
        book.came(2, worker, update, now_s)
        decisions = book.asked(worker, update, 32, 0.1, now_s)
        looks += [each.looks for decision in decisions for each in decision.permissions]
    assert looks == [True, False, True, False, True]


def test_an_update_counts_once_every_server_has_it_and_its_worker_has_asked() -> None:
    book = begun(PaceBook(Asp(), Equal(32), (0, 1), (2, 3), 5))
    assert book.came(2, 0, 1, 1.0) == ()
    assert book.came(3, 0, 1, 1.1) == ()
    came, decision = book.asked(0, 1, 32, 0.5, 1.2)
    assert came.came == (0, 1)
    assert [each.update for each in decision.applied] == [(0, 1)]
    assert decision.version == 1
    assert decision.permissions == (Permission(0, 2, 32, True),)


def tuned_batches(pace: Asp | Bsp) -> list[int]:
    """Return the batches of two workers alike, when pushing has taken one of them 2 s longer."""
    load = Tuned(100, 1000)
    book = begun(PaceBook(pace, load, (0, 1), (2,), 99))
    now_s = 0.0
    for update in range(1, 60):
        for worker, push_s in ((0, 1.0), (1, 3.0)):
            book.asked(worker, update, load.samples(worker), 1.0, now_s + 1.0)
            book.came(2, worker, update, now_s + 1.0 + push_s)
        now_s += 4.0
    return [load.samples(worker) for worker in (0, 1)]


def test_tuned_batches_leave_a_worker_time_to_push() -> None:
    fast, slow = tuned_batches(Asp())
    assert slow == 100
    assert fast > 200  # 2 s more to compute in, at 1 s for what it has


def test_pushing_does_not_count_where_updates_come_added_up_with_the_slowest() -> None:
    assert tuned_batches(Bsp()) == [100, 100]


def test_what_each_update_had_missed_is_told() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1), (2,), 9))
    for update in (1, 2, 3):
        book.asked(0, update, 1, 0.1, update)
        book.came(2, 0, update, update)
    book.asked(1, 1, 1, 0.1, 4.0)
    _, decision = book.came(2, 1, 1, 4.0)
    assert [each.missed for each in decision.applied] == [3]


@pytest.mark.parametrize("pace", [Asp, Bsp, R2sp])
def test_a_worker_that_has_made_all_its_updates_finishes_and_the_last_ends_the_run(
    pace: type[Asp] | type[Bsp] | type[R2sp],
) -> None:
    book = begun(PaceBook(pace(), Equal(1), (0, 1), (2,), 3))
    decisions: list[Decision] = []
    for update in (1, 2, 3):
        for worker in (0, 1):
            now_s = 10.0 * update + worker
            decisions += book.asked(worker, update, 1, 0.1, now_s)
            decisions += book.came(2, worker, update, now_s)
        if book.due_s < 10.0 * update + 9:
            decisions += book.look(book.due_s)
    applied = [each.update for decision in decisions for each in decision.applied]
    assert sorted(applied) == [(worker, update) for worker in (0, 1) for update in (1, 2, 3)]
    assert sorted(worker for decision in decisions for worker in decision.finished) == [0, 1]
    assert book.standing.is_over


def test_at_the_end_all_that_are_there_get_the_model_for_the_update_after_their_last() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1, 3), (2,), 2))
    book.lost(1, 0.5)
    book.joined(1, 0.7)
    for update in (1, 2):
        for worker in (0, 3):
            book.asked(worker, update, 1, 0.1, update)
            book.came(2, worker, update, update)
    book.asked(1, 2, 1, 0.1, 4.0)
    book.came(2, 1, 2, 4.0)
    assert book.standing.is_over
    assert book.last_pulls({1, 2, 3}) == ((1, 3), (3, 3))


def test_a_worker_that_is_back_as_the_run_stops_gets_the_last_model_with_its_group() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1, 3), (2,), 9))
    book.lost(1, 0.5)
    book.close()
    book.joined(1, 0.7)
    for worker in (0, 3):
        book.asked(worker, 1, 1, 0.1, 1.0)
        book.came(2, worker, 1, 1.0)
    assert book.standing.is_over
    before = book.standing.epochs[0]
    assert book.last_pulls({0, 1, 2, 3}) == ((0, 2), (1, 2), (3, 2))
    assert book.standing.epochs[0] == before + 1  # by which it hears that it is one of them
    assert {*book.standing.sums_of(0)[0]} == {0, 1, 3}


def test_a_group_hears_which_of_its_workers_get_the_last_model_if_it_takes_others_for_them() -> (
    None
):
    groups = [(0, 1), (4,)]
    for told in ({}, {0: (0, 1)}, {0: ()}, {0: (1,)}):
        book = begun(PaceBook(Asp(), Equal(1), (0, 1, 4), (2,), 1, groups=groups))
        all_of(book, (0, 1), 1, 1.0)
        all_of(book, (4,), 1, 2.0)
        assert book.last_pulls({0, 1, 2, 4}, told=told) == ((0, 2), (1, 2), (4, 2))
        assert book.standing.epochs == {0: int(told.get(0) in ((), (1,))), 4: 0}
        assert book.standing.sums_of(0) == ((0, 1), 2)


def test_a_worker_that_waits_to_come_back_is_in_the_group_that_gets_the_last_model() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1, 3), (2,), 2))
    book.lost(1, 0.5)
    for update in (1, 2):
        for worker in (0, 3):
            book.asked(worker, update, 1, 0.1, update)
            if update == 2 and not worker:
                book.joined(1, 2.0)  # in the last iteration
            book.came(2, worker, update, update)
    assert book.standing.is_over
    before = book.standing.epochs[0]
    assert book.last_pulls({0, 1, 2}) == ((0, 3), (1, 3))
    assert book.standing.epochs[0] == before + 1
    assert book.standing.sums_of(0) == ((0, 1), 3)


def test_a_closed_book_lets_nobody_go_on() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1), (2,), 9))
    book.close()
    book.asked(0, 1, 1, 0.1, 1.0)
    decisions = book.came(2, 0, 1, 1.0)
    assert decisions[1].applied
    assert decisions[1].finished == (0,)
    assert not any(decision.permissions for decision in decisions)
    assert not book.standing.is_over


def test_the_others_go_on_without_a_worker_that_has_died() -> None:
    book = begun(PaceBook(Ssp(lead=0), Equal(1), (0, 1), (2,), 9))
    book.asked(0, 1, 1, 0.1, 1.0)
    assert not any(decision.permissions for decision in book.came(2, 0, 1, 1.0))
    decisions = book.lost(1, 2.0)
    assert decisions[0].discarded == ((1, 1),)  # servers forget what has come of it
    assert decisions[1].permissions == (Permission(0, 2, 1, True),)
    assert book.came(2, 1, 1, 2.1) == ()  # what was on its way still comes
    assert book.standing.epochs == {0: 0, 1: 0}


def test_under_a_barrier_the_pace_hears_of_nobody_before_everybody_is_here() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1), (2, 3), 9))
    for worker in (0, 1):
        assert book.came(2, worker, 1, 0.9) == ()
        assert book.asked(worker, 1, 1, 0.1, 1.0) == ()
    (came,) = book.came(3, 1, 1, 1.1)
    assert came.came == (1, 1)
    decisions = book.came(3, 0, 1, 1.2)
    assert [decision.came for decision in decisions] == [(0, 1), None]
    assert [each.update for each in decisions[-1].applied] == [(0, 1), (1, 1)]


def test_under_a_barrier_a_loss_voids_what_has_come_of_the_others() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1, 4), (2, 3), 9))
    for worker in (0, 1, 4):
        if worker != 4:  # who has not asked when the loss comes
            book.asked(worker, 1, 1, 0.1, 1.0)
        book.came(2, worker, 1, 1.1)
        book.came(3, worker, 1, 1.1)
    decisions = book.lost(1, 2.0)
    assert (book.standing.epochs, book.standing.sums_of(0)) == ({0: 1}, ((0, 4), 1))
    assert [book.is_void(0, epoch) for epoch in (0, 1)] == [True, False]
    assert not any(decision.applied for decision in decisions)
    assert book.asked(4, 1, 1, 0.1, 2.1) == ()
    for worker in (0, 4):
        assert book.came(2, worker, 1, 2.2) == ()
    (came,) = book.came(3, 0, 1, 2.3)
    assert came.came == (0, 1)  # again
    decisions = book.came(3, 4, 1, 2.3)
    assert [each.update for each in decisions[-1].applied] == [(0, 1), (4, 1)]
    with pytest.raises(OutOfPlaceMessage, match="epoch 2 with an update of site 0, where 1 is the"):
        book.is_void(0, 2)


def test_a_tuned_batch_rides_on_the_permission() -> None:
    book = begun(PaceBook(Bsp(), Tuned(100, 1000), (0, 1), (2,), 9))
    permissions: tuple[Permission, ...] = ()
    for worker, compute_s in ((0, 1.0), (1, 4.0)):
        book.asked(worker, 1, 100, compute_s, compute_s)
        for decision in book.came(2, worker, 1, compute_s):
            permissions += decision.permissions
    assert permissions == (Permission(0, 2, 400, True), Permission(1, 2, 100, True))


def test_what_is_out_of_place_is_refused() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1), (2, 3), 9))
    with pytest.raises(OutOfPlaceMessage, match="site 0 has an update, but serves no part"):
        book.came(0, 1, 1, 0.0)
    with pytest.raises(OutOfPlaceMessage, match="update 2 of site 0, which is not awaited"):
        book.came(2, 0, 2, 0.0)
    with pytest.raises(OutOfPlaceMessage, match="update 7 of site 0, which is not awaited"):
        book.asked(0, 7, 1, 0.1, 0.0)
    book.came(2, 0, 1, 0.0)
    with pytest.raises(OutOfPlaceMessage, match="site 2 has update 1 of site 0 twice"):
        book.came(2, 0, 1, 0.0)
    book.asked(0, 1, 1, 0.1, 0.0)
    with pytest.raises(OutOfPlaceMessage, match="site 0 asks to proceed twice"):
        book.asked(0, 1, 1, 0.1, 0.0)
    book.came(3, 0, 1, 0.0)  # and now it is settled
    with pytest.raises(OutOfPlaceMessage, match="update 1 of site 0, which is not awaited"):
        book.came(2, 0, 1, 0.0)


def push(book: PaceBook, worker: int, update: int, now_s: float) -> tuple[Decision, ...]:
    """Let all of a worker's update come to the server of a book that has one, site 2."""
    return book.asked(worker, update, 1, 0.1, now_s) + book.came(2, worker, update, now_s)


def test_a_worker_that_joins_again_goes_on_with_its_next_update_and_makes_what_is_left() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1), (2,), 3))
    push(book, 1, 1, 1.0)
    book.lost(1, 2.0)  # while it made its second
    (decision,) = book.joined(1, 3.0)
    assert decision.permissions == (Permission(1, 3, 1, True),)
    assert book.came(2, 1, 2, 3.1) == ()  # of its earlier incarnation; was on its way
    _, applied, *_ = push(book, 1, 3, 4.0)
    assert [each.update for each in applied.applied] == [(1, 3)]
    assert applied.finished == (1,)
    assert book.standing.workers == (0,)


def test_an_update_that_counted_before_its_worker_died_is_not_discarded() -> None:
    book = begun(PaceBook(Ssp(lead=0), Equal(1), (0, 1), (2,), 9))
    _, decision = push(book, 1, 1, 1.0)
    assert [each.update for each in decision.applied] == [(1, 1)]
    assert not any(decision.discarded for decision in book.lost(1, 2.0))


def test_who_has_nothing_left_to_do_or_computes_nothing_joins_without_a_word() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1), (2,), 1))
    assert book.joined(2, 0.5) == ()  # a server's site
    push(book, 1, 1, 1.0)
    book.lost(1, 2.0)
    assert book.joined(1, 3.0) == ()
    assert book.standing.workers == (0,)


def test_under_a_barrier_a_worker_that_joins_again_waits_for_the_end_of_the_iteration() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1), (2,), 9))
    for update in (1, 2):
        for worker in (0, 1):
            push(book, worker, update, update)
    book.lost(1, 2.5)
    assert (book.standing.epochs, book.standing.workers) == ({0: 1}, (0,))
    push(book, 0, 3, 3.0)
    assert book.joined(1, 3.5) == ()
    assert (book.standing.epochs, book.standing.workers) == ({0: 1}, (0,))
    _, decision = push(book, 0, 4, 4.0)
    assert [each.update for each in decision.applied] == [(0, 4)]
    assert decision.permissions == (Permission(0, 5, 1, True), Permission(1, 5, 1, True))
    assert (book.standing.epochs, book.standing.sums_of(0)) == ({0: 2}, ((0, 1), 5))
    push(book, 1, 5, 5.0)
    _, decision = push(book, 0, 5, 5.0)
    assert [each.update for each in decision.applied] == [(0, 5), (1, 5)]


def test_under_a_barrier_who_is_back_goes_on_alone_if_everybody_else_dies() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1), (2,), 9))
    book.lost(1, 1.0)
    book.joined(1, 2.0)
    decisions = book.lost(0, 3.0)
    assert [each for d in decisions for each in d.permissions] == [Permission(1, 2, 1, True)]
    assert (book.standing.epochs, book.standing.workers, book.standing.is_over) == (
        {0: 3},
        (1,),
        False,
    )


def test_under_a_barrier_nobody_joins_for_an_iteration_that_is_not_wanted() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1), (2,), 1))
    book.lost(1, 1.0)
    book.joined(1, 2.0)
    _, decision, *_ = push(book, 0, 1, 3.0)
    assert (decision.permissions, decision.finished) == ((), (0,))
    assert (book.standing.epochs, book.standing.is_over) == ({0: 1}, True)


class Measured(Equal):
    """Keeps whose iterations were measured."""

    def __init__(self) -> None:
        super().__init__(1)
        self.of: list[tuple[int, float]] = []

    def measured(self, worker: int, samples: int, compute_s: float, iteration_s: float) -> None:
        self.of.append((worker, iteration_s))


def late(load: Measured, updates: int = 9, ahead: int = 0) -> PaceBook:
    """Return a book whose worker 1 is too late as soon as worker 0's update is in."""
    pace = Safa(fraction=0.5, lag_tolerance=0)
    return begun(PaceBook(pace, load, (0, 1), (2,), updates, ahead))


def test_a_worker_whose_model_is_too_old_abandons_its_update_and_begins_anew() -> None:
    load = Measured()
    book = late(load)
    _, decision = push(book, 0, 1, 1.0)
    assert [each.update for each in decision.applied] == [(0, 1)]
    assert decision.abandoned == ((1, 1),)
    assert decision.discarded == ()
    assert book.came(2, 1, 1, 1.1) == ()  # had been sent before it heard
    (decision,) = book.asked(1, 1, 1, 0.1, 1.5)
    assert decision.came is None
    assert decision.discarded == ((1, 1),)
    assert decision.permissions == (Permission(1, 2, 1, True),)
    assert book.came(2, 1, 1, 1.6) == ()
    assert load.of == [(0, 1.0)]
    _, decision = push(book, 1, 2, 2.0)
    assert [(each.update, each.missed) for each in decision.applied] == [((1, 2), 0)]
    assert decision.abandoned == ((0, 2),)


def test_who_is_still_pushing_when_it_is_too_late_goes_on_at_once() -> None:
    book = late(Measured())
    assert book.asked(1, 1, 1, 0.1, 0.5) == ()
    _, ends, begins = push(book, 0, 1, 1.0)
    assert ends.abandoned == ((1, 1),)
    assert begins.discarded == ((1, 1),)
    assert begins.permissions == (Permission(1, 2, 1, True),)


def test_who_abandons_its_last_update_has_finished() -> None:
    book = late(Measured(), updates=1)
    push(book, 0, 1, 1.0)
    assert book.standing.workers == (1,)
    (decision,) = book.asked(1, 1, 1, 0.1, 1.5)
    assert (decision.discarded, decision.permissions) == (((1, 1),), ())
    assert decision.finished == (1,)
    assert book.standing.is_over


def test_who_dies_before_it_hears_is_forgotten_with_what_it_was_to_abandon() -> None:
    book = late(Measured())
    push(book, 0, 1, 1.0)
    first, *_ = book.lost(1, 2.0)
    assert first.discarded == ((1, 1),)
    (decision,) = book.joined(1, 3.0)
    assert decision.permissions == (Permission(1, 2, 1, True),)


def test_who_computes_ahead_abandons_all_that_it_was_let_compute() -> None:
    book = late(Measured(), updates=99, ahead=1)
    _, decision = push(book, 0, 1, 1.0)
    assert decision.abandoned == ((1, 2),)
    now_s = 1.0
    for update in range(2, 20):  # while the other hangs
        push(book, 0, update, now_s)
        now_s = book.due_s
        (decision,) = book.look(now_s)
        assert [each.update for each in decision.applied] == [(0, update)]
    assert book.asked(1, 1, 1, 0.1, now_s) == ()
    (decision,) = book.asked(1, 2, 1, 0.0, now_s)
    assert decision.discarded == ((1, 1), (1, 2))
    assert decision.permissions == (Permission(1, 3, 1, True), Permission(1, 4, 1, False))
    _, decision = push(book, 1, 3, now_s + 1.0)
    assert [(each.update, each.missed) for each in decision.applied] == [((1, 3), 0)]


def test_who_computes_ahead_and_stood_still_has_its_second_update_discarded_like_its_first() -> (
    None
):
    book = begun(PaceBook(R2sp(relaxation=0.0), Equal(1), (0, 1, 2), (3,), 99, ahead=1))
    now_s, latest = 0.0, {0: 0, 1: 0, 2: 0}
    decisions: list[Decision] = []

    def push(worker: int) -> None:
        latest[worker] += 1
        decisions.extend(book.asked(worker, latest[worker], 1, 1.0, now_s))
        decisions.extend(book.came(3, worker, latest[worker], now_s))

    def pass_s(seconds: float) -> None:
        nonlocal now_s
        until_s = now_s + seconds
        while book.due_s <= until_s:
            now_s = book.due_s
            decisions.extend(book.look(now_s))
        now_s = until_s

    for round in range(40):
        pass_s(1.0)
        for worker in (0, 1, 2):
            if (worker != 2 or not 10 <= round < 30) and latest[worker] < book.standing.made(
                worker
            ):
                push(worker)
    discarded = [update for each in decisions for update in each.discarded if update[0] == 2]
    assert len(discarded) == 2
    assert discarded[1] == (2, discarded[0][1] + 1)
    applied = [each.update for decision in decisions for each in decision.applied]
    assert applied[-1][0] in latest
    assert max(update for worker, update in applied if worker == 2) > discarded[1][1]


def test_a_forest_weighs_a_tree_by_its_samples_its_mean_loss_and_its_norm() -> None:
    haaf = Product(of=(DataSize(), Fairness(q=1.0, lipschitz=100.0), Staleness(a=0.5)))
    groups = [(0, 1), (4,)]
    book = PaceBook(Asp(), Equal(8), (0, 1, 4), (2, 3), 9, groups=groups, merge=haaf)
    for worker, samples in ((0, 100), (1, 300), (4, 400)):
        book.holds(worker, samples)
    begun(book)
    for update in (1, 2, 3):  # the small tree takes three steps meanwhile
        book.asked(4, update, 8, 0.1, update, loss=1.0)
        for server in (2, 3):
            book.came(server, 4, update, update, squared_norm=0.0)
    for worker, loss in ((0, 1.0), (1, 3.0)):
        book.asked(worker, 1, 8, 0.1, 4.0, loss=loss)
    decisions = [
        decision
        for server in (2, 3)
        for worker in (0, 1)
        for decision in book.came(server, worker, 1, 4.0, squared_norm=25.0)
    ]
    [step] = [decision for decision in decisions if decision.applied]
    assert [each.update for each in step.applied] == [(0, 1), (1, 1)]
    # P = 400 / 800 is in what workers push with; a loss of 2 and a squared norm of 50 give
    # 1 / (1 + 50 / (100 * 2)) = 0.8, and three versions of staleness 4 ** -0.5.
    assert {each.factor for each in step.applied} == {0.8 * 0.5}
    assert {each.missed for each in step.applied} == {3}
    assert [went.worker for went in step.permissions] == [0, 1]


def test_a_loss_voids_the_sums_of_its_tree_alone() -> None:
    groups = [(0, 1), (4, 5)]
    book = begun(PaceBook(Asp(), Equal(1), (0, 1, 4, 5), (2,), 9, groups=groups))
    for worker in (0, 1, 4):
        book.asked(worker, 1, 1, 0.1, 1.0)
    book.came(2, 4, 1, 1.0)
    assert book.lost(1, 2.0)[0].discarded == ((1, 1),)
    assert book.standing.epochs == {0: 1, 4: 0}
    assert (book.standing.sums_of(0), book.standing.sums_of(4)) == (((0,), 1), ((4, 5), 1))
    assert book.is_void(0, 0)
    assert not book.is_void(4, 0)
    *_, step = book.came(2, 0, 1, 3.0)
    assert [each.update for each in step.applied] == [(0, 1)]
    book.asked(5, 1, 1, 0.1, 4.0)
    *_, step = book.came(2, 5, 1, 4.0)
    assert [each.update for each in step.applied] == [(4, 1), (5, 1)]


def test_a_tree_that_waits_for_others_pushes_nothing_again_when_it_loses_a_worker() -> None:
    groups = [(0, 1), (4,)]
    book = begun(PaceBook(Ssp(lead=0), Equal(1), (0, 1, 4), (2,), 9, groups=groups))
    for worker in (0, 1):
        book.asked(worker, 1, 1, 0.1, 1.0)
        book.came(2, worker, 1, 1.0)
    book.lost(1, 2.0)
    assert book.standing.sums_of(0) == ((0,), 2)  # its first is settled
    book.asked(4, 1, 1, 0.1, 3.0)
    *_, step = book.came(2, 4, 1, 3.0)
    assert [went.worker for went in step.permissions] == [0, 4]


def all_of(book: PaceBook, group: tuple[int, ...], update: int, now_s: float) -> list[Decision]:
    """Let a group's workers ask, and the one server have what they made."""
    found: list[Decision] = []
    for worker in group:
        found += book.asked(worker, update, 1, 0.1, now_s)
        found += book.came(2, worker, update, now_s)
    return found


def went(decisions: Sequence[Decision]) -> list[tuple[int, int]]:
    return [(each.worker, each.update) for step in decisions for each in step.permissions]


def three_groups(pace: Asp | Ssp | None = None) -> PaceBook:
    groups = [(0, 1), (4, 5), (6,)]
    return begun(PaceBook(pace or Asp(), Equal(1), (0, 1, 4, 5, 6), (2,), 9, groups=groups))


def test_groups_that_change_come_to_rest_at_the_end_of_their_iterations_and_others_go_on() -> None:
    book = three_groups()
    all_of(book, (4, 5), 1, 1.0)
    book.reform([(0, 4), (1, 5), (6,)], kept=[6])
    assert not book.standing.is_at_rest
    decisions = all_of(book, (4, 5), 2, 2.0)
    assert [each.update for step in decisions for each in step.applied] == [(4, 2), (5, 2)]
    assert went(decisions) == []  # it counts, and they wait
    assert went(all_of(book, (6,), 1, 3.0)) == [(6, 2)]
    assert not book.standing.is_at_rest
    assert went(all_of(book, (0, 1), 1, 4.0)) == []
    assert book.standing.is_at_rest
    assert (book.standing.next_update((0, 4)), book.standing.next_update((1, 5))) == (3, 3)
    assert went(book.formed(5.0)) == [(0, 3), (4, 3), (1, 3), (5, 3)]
    assert sorted(book.standing.groups) == [(0, 4), (1, 5), (6,)]
    assert book.standing.epochs == {0: 0, 1: 0, 6: 0}
    assert went(all_of(book, (1, 5), 3, 6.0)) == [(1, 4), (5, 4)]


def test_groups_that_wait_for_one_another_come_to_rest() -> None:
    """The one ahead waits for the one behind, which leaves the pace: then it rests as well."""
    book = three_groups(Ssp(lead=1))
    all_of(book, (0, 1), 1, 1.0)
    assert went(all_of(book, (0, 1), 2, 2.0)) == []  # two ahead of the others
    book.reform([(0, 1, 4, 5), (6,)], kept=[6])
    all_of(book, (4, 5), 1, 3.0)
    assert not book.standing.is_at_rest
    all_of(book, (6,), 1, 3.0)
    assert book.standing.is_at_rest
    assert went(book.formed(4.0)) == [(0, 3), (1, 3), (4, 3), (5, 3)]


def test_a_group_whose_way_is_broken_gives_up_what_is_under_way_and_no_other_does() -> None:
    book = three_groups()
    book.asked(1, 1, 1, 0.1, 1.0)
    decisions = book.lost(0, 2.0, broken=[0])
    [given_up] = [step for step in decisions if step.is_broken]
    assert given_up.discarded == ((0, 1), (1, 1))
    assert given_up.abandoned == ((0, 1), (1, 1))
    assert decisions == (given_up,)
    assert book.standing.epochs[0] == 0  # nothing of it is made again
    book.reform([(1, 4), (5,), (6,)], kept=[6])
    assert book.came(2, 1, 1, 2.5) == ()  # a server had it all the same
    assert went(all_of(book, (4, 5), 1, 3.0)) == []
    assert book.standing.is_at_rest
    assert went(book.formed(4.0)) == [(1, 2), (4, 2), (5, 2)]


def test_a_group_that_gives_up_is_at_rest_once_all_its_workers_have_asked() -> None:
    book = three_groups()
    book.lost(6, 1.0, broken=[4])
    book.reform([(0, 1), (4,), (5,)], kept=[0])
    assert book.asked(4, 1, 1, 0.1, 2.0) == ()
    assert not book.standing.is_at_rest
    book.asked(5, 1, 1, 0.1, 3.0)
    assert book.standing.is_at_rest
    assert book.standing.is_given_up(4, 1)
    assert went(book.formed(4.0)) == [(4, 2), (5, 2)]


def test_an_update_that_is_all_here_counts_though_the_way_broke_after_it() -> None:
    """Under a lead of 0 it waits for the others', and is given up for nothing."""
    book = three_groups(Ssp(lead=0))
    [*_, step] = all_of(book, (0, 1), 1, 1.0)
    assert step.applied
    assert book.lost(0, 2.0, broken=[0]) == ()
    assert not book.standing.is_given_up(1, 1)


def test_who_dies_while_groups_are_formed_is_not_in_their_first_sums() -> None:
    book = three_groups()
    book.reform([(0, 1, 4, 5), (6,)], kept=[6])
    all_of(book, (0, 1), 1, 1.0)
    all_of(book, (4, 5), 1, 1.0)
    book.lost(5, 2.0)
    assert book.standing.is_at_rest
    assert went(book.formed(3.0)) == [(0, 2), (1, 2), (4, 2)]
    assert (book.standing.epochs[0], book.standing.sums_of(0)) == (1, ((0, 1, 4), 2))
    book.joined(5, 4.0)
    assert went(all_of(book, (0, 1, 4), 2, 5.0)) == [(0, 3), (1, 3), (4, 3), (5, 3)]


def test_who_comes_back_to_a_group_that_is_no_more_is_homeless_until_groups_are_formed() -> None:
    book = three_groups()
    book.lost(5, 1.0)
    book.reform([(0, 1), (4, 6)], kept=[0])
    all_of(book, (4,), 1, 2.0)
    all_of(book, (6,), 1, 2.0)
    book.joined(5, 2.5)
    book.formed(3.0)
    assert [*book.standing.homeless] == [5]
    book.reform([(0, 1), (4, 5), (6,)], kept=[0])
    all_of(book, (4, 6), 2, 4.0)
    assert went(book.formed(5.0)) == [(4, 3), (5, 3), (6, 3)]
    assert not book.standing.homeless


def test_a_group_that_is_to_change_and_then_not_goes_on_as_it_is() -> None:
    book = three_groups()
    book.reform([(0, 1, 4, 5), (6,)], kept=[6])
    all_of(book, (0, 1), 1, 1.0)
    book.reform([(0, 1), (4,), (5,), (6,)], kept=[0, 6])
    all_of(book, (4, 5), 1, 2.0)
    assert went(book.formed(3.0)) == [(0, 2), (1, 2), (4, 2), (5, 2)]


def test_groups_whose_way_leads_through_a_site_are_named() -> None:
    def tree(*parents: int) -> Plan:
        return Plan(1, (Tree(2, 1.0, parents, parents),))

    chain = replace(tree(1, 2, -1, -2), version=2)
    book = begun(PaceBook(Asp(), Equal(1), (0, 1, 3), (2,), 9, groups=[(0, 1), (3,)]))
    groups = (Group((0, 1), chain), Group((3,), replace(tree(-2, -2, -1, 2), version=3)))
    plan = replace(tree(2, 2, -1, 2), groups=groups)
    assert [led_through(plan, book, site) for site in range(4)] == [(), (0,), (0, 3), ()]
    assert lost_between(plan, 0, {1, 3}) == {1}
    assert lost_between(plan, 1, {0, 1, 3}) == set()
    assert lost_between(plan, 3, {0, 1, 2}) == {2}
    book.lost(0, 1.0)
    assert led_through(plan, book, 1) == ()  # nobody is left behind it


def test_who_has_made_all_is_in_no_new_group_and_waits_for_none() -> None:
    groups = [(0, 1), (4,), (5,)]
    book = begun(PaceBook(Asp(), Equal(1), (0, 1, 4, 5), (2,), 2, groups=groups))
    all_of(book, (5,), 1, 1.0)
    all_of(book, (5,), 2, 2.0)
    assert book.standing.done == (5,)
    book.reform([(0, 4), (1, 5)], kept=[])  # found before it was known
    all_of(book, (0, 1), 1, 3.0)
    all_of(book, (4,), 1, 3.0)
    assert book.standing.is_at_rest
    assert book.standing.next_update((1, 5)) == 2
    assert went(book.formed(4.0)) == [(0, 2), (4, 2), (1, 2)]
    book.joined(5, 5.0)
    assert not book.standing.homeless
    book.lost(5, 6.0)
    book.reform([(0, 4), (1,)], kept=[0])
    all_of(book, (0, 4), 2, 7.0)
    all_of(book, (1,), 2, 7.0)
    assert book.standing.is_over


def test_a_worker_that_computes_is_awaited_once_another_one_has_asked_to_go_on() -> None:
    book = begun(PaceBook(Bsp(), Equal(1), (0, 1), (2,), 9))
    assert book.standing.stalls() == []
    book.asked(0, 1, 1, 0.1, 1.0)
    book.came(2, 0, 1, 1.0)
    [stall] = book.standing.stalls()
    assert (stall.awaited, stall.waiting, stall.what) == (1, {0}, "its update 1")
    book.asked(1, 1, 1, 0.1, 2.0)
    book.came(2, 1, 1, 2.0)
    assert book.standing.stalls() == []  # both compute again


def test_one_group_that_gets_the_last_model_is_enough() -> None:
    groups = [(0, 1), (4,)]
    book = begun(PaceBook(Asp(), Equal(1), (0, 1, 4), (2,), 1, groups=groups))
    for group in groups:
        all_of(book, group, 1, 1.0)
    assert book.last_pulls({0, 1, 2, 4}) == ((0, 2), (1, 2), (4, 2))
    assert book.last_pulls({0, 1, 2, 4}, to_one=True) == ((0, 2), (1, 2))
    assert book.last_pulls({2, 4}, to_one=True) == ((4, 2),)


def test_registered_clients_are_welcome_until_they_are_barred() -> None:
    registry = Registry(Clients(registered=5), 0)
    book = PaceBook(Asp(), Equal(1), (0, 1), (2,), 1, registry=registry)
    assert book.standing.welcome == 5
    registry.barred.add(3)
    assert book.standing.welcome == 4
    assert PaceBook(Asp(), Equal(1), (0, 1), (2,), 1).standing.welcome == 0
