"""Every row of the tables of a worker's life and of a group's, as books live them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from anabranch.cohort import Clients
from anabranch.merge import OutlierFilter
from anabranch.pace import Asp, Bsp, Equal, Ssp
from anabranch.scheduler._stages import Stages
from anabranch.scheduler.pacing import PaceBook
from anabranch.scheduler.serving import _groups as groups
from anabranch.scheduler.serving import _workers as workers

from .test_barring import Run, make
from .test_barring import push as push_and_judge
from .test_pacing import all_of, begun, three_groups

Row = tuple[Any, Any]
WORKER_ROWS = [(stage, what) for stage, row in workers.TABLE.items() for what in row]
GROUP_ROWS = [(stage, what) for stage, row in groups.TABLE.items() for what in row]


def pair(updates: int = 9) -> PaceBook:
    """Return the book of two workers under a barrier."""
    return begun(PaceBook(Bsp(), Equal(1), (0, 1), (2,), updates))


def alone_lost_and_back_until_it_has_finished() -> None:
    book = begun(PaceBook(Asp(), Equal(1), (0, 1), (2,), 2))
    book.lost(0, 1.0)
    book.joined(0, 2.0)
    all_of(book, (0,), 2, 3.0)
    assert book.standing.workers == (1,)


def back_under_a_barrier() -> None:
    book = pair()
    book.lost(0, 1.0)
    book.joined(0, 2.0)
    all_of(book, (1,), 1, 3.0)
    assert {*book.standing.workers} == {0, 1}


def back_and_lost_again_under_a_barrier() -> None:
    book = pair()
    book.lost(0, 1.0)
    book.joined(0, 2.0)
    book.lost(0, 3.0)
    all_of(book, (1,), 1, 4.0)
    assert book.standing.workers == (1,)


def back_as_the_run_stops() -> None:
    book = pair()
    book.lost(0, 1.0)
    book.joined(0, 2.0)
    book.close()
    all_of(book, (1,), 1, 3.0)
    assert book.standing.is_over


def back_after_the_run_was_stopped_and_lost_again() -> None:
    book = pair()
    book.lost(0, 1.0)
    book.close()
    book.joined(0, 2.0)
    book.lost(0, 2.5)
    all_of(book, (1,), 1, 3.0)
    assert book.standing.is_over
    assert [worker for worker, _ in book.last_pulls({1})] == [1]


def without_a_home() -> PaceBook:
    """Return a book whose worker 5 is homeless: it comes back after its group was dissolved."""
    book = three_groups()
    book.lost(5, 1.0)
    book.reform([(0, 1), (4, 6)], kept=[0])
    for lead in (4, 6):
        all_of(book, (lead,), 1, 2.0)
    book.formed(3.0)
    book.joined(5, 4.0)
    assert book.standing.homeless == [5]
    return book


def homeless_and_lost_again() -> None:
    book = without_a_home()
    book.lost(5, 5.0)
    assert not book.standing.homeless


def homeless_as_the_run_stops() -> None:
    book = without_a_home()
    book.close()
    assert not book.standing.homeless


def homeless_until_groups_are_formed() -> None:
    book = without_a_home()
    book.reform([(0, 1), (4, 5), (6,)], kept=[0])
    all_of(book, (4, 6), 2, 5.0)
    book.formed(6.0)
    assert 5 in book.standing.workers


def back_as_its_group_is_dissolved() -> None:
    book = three_groups()
    book.lost(5, 1.0)
    book.reform([(0, 1), (4, 6)], kept=[0])
    book.joined(5, 1.5)
    for lead in (4, 6):
        all_of(book, (lead,), 1, 2.0)
    book.formed(3.0)
    assert book.standing.homeless == [5]


def back_with_nothing_left_to_do_as_its_group_is_dissolved() -> None:
    of = [(0, 1), (4,), (5,)]
    book = begun(PaceBook(Asp(), Equal(1), (0, 1, 4, 5), (2,), 2, groups=of))
    all_of(book, (5,), 1, 1.0)
    all_of(book, (5,), 2, 2.0)
    book.joined(5, 3.0)
    book.reform([(0, 1, 4)], kept=[])
    all_of(book, (0, 1), 1, 4.0)
    all_of(book, (4,), 1, 4.0)
    book.formed(5.0)
    assert not book.standing.homeless
    book.reform([(0, 1), (4,), (5,)], kept=[])
    all_of(book, (0, 1, 4), 2, 6.0)
    assert book.standing.is_over


def judged(patience: int = 1, ends_after: int | None = 1) -> Run:
    """Return three workers, the first of which is barred, and has yet to hear of it."""
    rule = OutlierFilter(patience=patience, ends_after=ends_after)
    run = Run(make(Asp(), 3, 9, rule))
    push_and_judge(run, 0, cosine=-1.0)
    assert run.barred == {0}
    return run


def barred_and_let_in_again() -> None:
    run = judged()
    push_and_judge(run, 1)
    run.tell("asked", 0, 2)
    assert run.went[-1] == (0, 3)


def recalled_and_lost() -> None:
    run = judged()
    push_and_judge(run, 1)
    run.lose(0)
    assert 0 not in run.book.standing.workers


def barred_lost_and_back() -> None:
    run = judged(ends_after=None)
    run.lose(0)
    run.join(0)
    assert run.book.standing.barred == (0,)


def without_clients() -> Run:
    """Return the book of two workers, whose only client but one was barred."""
    rule = OutlierFilter(patience=1, ends_after=2, most=1.0)
    run = Run(make(Asp(), 2, 9, rule, clients=Clients(registered=2)))
    push_and_judge(run, 0, cosine=-1.0)
    (number,) = [update for each, update in run.went if each == 0][-1:]
    run.tell("asked", 0, number)
    run.tell("came", 9, 0, number)
    assert run.book.standing.idle == (0,)
    return run


def idle_until_a_client_is_let_in() -> None:
    run = without_clients()
    for _ in range(2):
        push_and_judge(run, 1)
    assert run.book.standing.idle == ()


def idle_and_lost() -> None:
    run = without_clients()
    run.lose(0)
    assert run.book.standing.idle == ()


def way_broken(ends: str) -> None:
    book = three_groups()
    book.lost(6, 1.0, broken=[4])
    if ends == "asks":
        for worker in (4, 5):
            book.asked(worker, 1, 1, 0.1, 2.0)
        book.reform([(0, 1), (4,), (5,)], kept=[0])
        assert book.standing.is_at_rest
    else:
        book.lost(4, 2.0)
        book.lost(5, 3.0)
        assert book.standing.workers == (0, 1)


def way_broken_and_all_ask() -> None:
    way_broken("asks")


def way_broken_and_all_are_lost() -> None:
    way_broken("are lost")


def kept_after_all() -> None:
    book = three_groups()
    book.reform([(0, 1, 4, 5), (6,)], kept=[6])
    all_of(book, (0, 1), 1, 1.0)
    book.reform([(0, 1), (4,), (5,), (6,)], kept=[0, 6])
    all_of(book, (4, 5), 1, 2.0)
    book.formed(3.0)
    assert book.standing.made(0) == 2


def lost_at_rest() -> None:
    book = three_groups()
    book.reform([(0, 1, 4, 5)], kept=[])
    all_of(book, (6,), 1, 1.0)
    book.lost(6, 2.0)
    assert 6 not in book.standing.workers


def lost_while_it_waits() -> None:
    book = begun(PaceBook(Ssp(lead=0), Equal(1), (0, 1), (2,), 9))
    all_of(book, (0,), 1, 1.0)
    book.lost(0, 2.0)
    assert book.standing.workers == (1,)


SCENARIOS: tuple[Callable[[], None], ...] = (
    alone_lost_and_back_until_it_has_finished,
    back_under_a_barrier,
    back_and_lost_again_under_a_barrier,
    back_as_the_run_stops,
    back_after_the_run_was_stopped_and_lost_again,
    homeless_and_lost_again,
    homeless_as_the_run_stops,
    homeless_until_groups_are_formed,
    back_as_its_group_is_dissolved,
    back_with_nothing_left_to_do_as_its_group_is_dissolved,
    barred_and_let_in_again,
    recalled_and_lost,
    barred_lost_and_back,
    idle_until_a_client_is_let_in,
    idle_and_lost,
    way_broken_and_all_ask,
    way_broken_and_all_are_lost,
    kept_after_all,
    lost_at_rest,
    lost_while_it_waits,
)


@cache
def lived() -> frozenset[Row]:
    """Live all scenarios; return each row of the two tables that happened."""
    seen: set[Row] = set()
    to_all = Stages.happens

    def happens(self: Stages[Any, Any], what: Any, *about: int) -> None:
        seen.update((self[each], what) for each in about)
        to_all(self, what, *about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stages, "happens", happens)
        for scenario in SCENARIOS:
            scenario()
    return frozenset(seen)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_lives(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize(
    ("stage", "what"), WORKER_ROWS + GROUP_ROWS, ids=lambda each: each.name.lower()
)
def test_each_row_of_the_tables_happens(stage: Any, what: Any) -> None:
    assert (stage, what) in lived()


@pytest.mark.parametrize("stage", workers.Stage)
@pytest.mark.parametrize("what", workers.Happens)
def test_what_the_table_of_workers_lacks_cannot_happen(
    stage: workers.Stage, what: workers.Happens
) -> None:
    lives = workers.Workers([3])
    lives.put(3, stage)
    following = workers.TABLE[stage].get(what)
    if following is None:
        with pytest.raises(RuntimeError, match=f"worker 3 {what.value}, and it is {stage.value}"):
            lives.happens(what, 3)
    else:
        lives.happens(what, 3)
        assert 3 in lives.at(following)
    assert lives[3] is (following or stage)


@pytest.mark.parametrize("stage", groups.Stage)
@pytest.mark.parametrize("what", groups.Happens)
def test_what_the_table_of_groups_lacks_cannot_happen(
    stage: groups.Stage, what: groups.Happens
) -> None:
    some = groups.Groups([(3, 4)], adds_up=True).stages
    some.put(3, stage)
    following = groups.TABLE[stage].get(what)
    assert some.may(3, what) == (following is not None)
    if following is None:
        with pytest.raises(RuntimeError, match=f"group 3 {what.value}, and it is {stage.value}"):
            some.happens(what, 3)
    else:
        some.happens(what, 3)
    assert some[3] is (following or stage)
