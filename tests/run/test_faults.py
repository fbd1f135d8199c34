"""Fault scripts: each becomes the action it says, or is refused with its entry and the fix."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch_lab.run._faults as faults
from anabranch._typed_toml import Table, TomlError, decode_toml
from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.run._faults import (
    ClockFault,
    ClockStep,
    ComputeFactor,
    CutFault,
    Factors,
    Fault,
    FaultError,
    Kill,
    KillFault,
    LinkFactor,
    Pause,
    PauseFault,
    Scripted,
    SlowFault,
    link_factors,
    play,
    script,
)

from ..every import every


class File(Table, frozen=True, kw_only=True):
    fault: tuple[Fault, ...] = ()


# dc1 <-> dc2 <-> dc3, and dc3 -> dc1 one way
OVERLAY = Overlay(
    "bend",
    (Site("dc1"), Site("dc2"), Site("dc3")),
    tuple(Link(a, b, 1e6) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)]),
)


def read(entry: str) -> tuple[Scripted, ...]:
    return script(decode_toml(f"fault = [{entry}]", File).fault, OVERLAY, rounds=10)


@pytest.mark.parametrize(
    ("entry", "action", "label"),
    [
        ('{kind="kill", site="dc3", at_s=1}', Kill(2), "kill dc3"),
        ('{kind="kill", site="dc3", at_s=1, for_s=20}', Kill(2, 20.0), "kill dc3 for 20 s"),
        ('{kind="pause", site="dc1", for_s=30, at_s=1}', Pause(0, 30.0), "pause dc1 for 30 s"),
        (
            '{kind="pause", scheduler=true, for_s=30, at_s=1}',
            Pause(None, 30.0),
            "pause the scheduler for 30 s",
        ),
        (
            '{kind="cut", link=["dc1", "dc2"], for_s=30, at_s=1}',
            LinkFactor(((0, 1),), 0.0, 30.0),
            "cut dc1->dc2 for 30 s",
        ),
        (
            '{kind="cut", pair=["dc3", "dc2"], at_s=1}',
            LinkFactor(((2, 1), (1, 2)), 0.0, None),
            "cut dc3<->dc2",
        ),
        (
            '{kind="cut", site="dc1", for_s=0.5, at_s=1}',
            LinkFactor(((0, 1), (1, 0), (2, 0)), 0.0, 0.5),
            "cut every link of dc1 for 0.5 s",
        ),
        (
            '{kind="slow", site="dc2", factor=4, for_s=60, at_s=1}',
            ComputeFactor(1, 4.0, 60.0),
            "slow dc2 4x for 60 s",
        ),
        (
            '{kind="slow", link=["dc3", "dc1"], factor=4, at_s=1}',
            LinkFactor(((2, 0),), 0.25, None),
            "slow dc3->dc1 4x",
        ),
        (
            '{kind="slow", pair=["dc1", "dc2"], factor=2.5, for_s=1, at_s=1}',
            LinkFactor(((0, 1), (1, 0)), 0.4, 1.0),
            "slow dc1<->dc2 2.5x for 1 s",
        ),
        (
            '{kind="clock", site="dc2", offset_s=-0.5, at_s=1}',
            ClockStep(1, -0.5, 0.0),
            "clock of dc2: jump -0.5 s",
        ),
        (
            '{kind="clock", site="dc2", offset_s=2, drift=5e-5, at_s=1}',
            ClockStep(1, 2.0, 5e-5),
            "clock of dc2: jump +2 s, gain +5e-05 s/s",
        ),
        (
            '{kind="partition", groups=[["dc1"], ["dc2", "dc3"]], for_s=3, at_s=1}',
            LinkFactor(((0, 1), (1, 0), (2, 0)), 0.0, 3.0),
            "partition dc1 | dc2, dc3 for 3 s",
        ),
        (
            '{kind="partition", groups=[["dc3"]], at_s=1}',  # the others are a group too
            LinkFactor(((1, 2), (2, 1), (2, 0)), 0.0, None),
            "partition dc3 | dc1, dc2",
        ),
    ],
)
def test_a_fault_becomes_the_action_it_says(entry: str, action: object, label: str) -> None:
    kind = re.findall(r'kind="(\w+)"', entry)[0]
    assert read(entry) == (Scripted(action, label, 1.0, None, None, kind),)  # type: ignore[arg-type]


def test_a_script_keeps_the_order_and_the_moments_of_its_entries() -> None:
    entries = [
        KillFault(site="dc1", round=10),
        KillFault(site="dc2", at_s=0.0),
        KillFault(site="dc3", round=1),
    ]
    found = script(entries, OVERLAY, rounds=10)
    assert [(each.at_s, each.round) for each in found] == [(None, 10), (0.0, None), (None, 1)]
    assert [each.action for each in found] == [Kill(0), Kill(1), Kill(2)]
    assert script([], OVERLAY) == ()


GOOD = '{kind="kill", site="dc1", at_s=1}'


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        # when
        ('{kind="kill", site="dc1"}', "fault[1]: give exactly one of at_s and round; it has none"),
        (
            '{kind="kill", site="dc1", at_s=1, round=2}',
            "fault[1]: give exactly one of at_s and round; it has at_s and round",
        ),
        (
            '{kind="kill", site="dc1", round=11}',
            "fault[1].round: round 11 never comes, the run has 10; give one of 1 to 10",
        ),
        # who
        (
            '{kind="kill", site="dc33", at_s=1}',
            "fault[1].site: no site 'dc33' in overlay 'bend'; did you mean 'dc3'?",
        ),
        ('{kind="pause", site="x", for_s=1, at_s=1}', "fault[1].site: no site 'x' in overlay 'be"),
        ('{kind="cut", site="x", at_s=1}', "fault[1].site: no site 'x' in overlay 'bend'; see"),
        ('{kind="slow", site="x", factor=2, at_s=1}', "fault[1].site: no site 'x' in overlay"),
        ('{kind="clock", site="x", drift=1, at_s=1}', "fault[1].site: no site 'x' in overlay"),
        ('{kind="cut", link=["dc1", "dc22"], at_s=1}', "fault[1].link[1]: no site 'dc22' in over"),
        ('{kind="cut", pair=["dc11", "dc2"], at_s=1}', "fault[1].pair[0]: no site 'dc11' in over"),
        (
            '{kind="cut", link=["dc1", "dc3"], at_s=1}',
            "fault[1].link: no link dc1->dc3 in overlay 'bend'; dc1 has links to dc2",
        ),
        (
            '{kind="slow", pair=["dc3", "dc1"], factor=2, at_s=1}',
            "fault[1].pair: no link dc1->dc3 in overlay 'bend'; dc1 has links to dc2",
        ),
        ('{kind="cut", link=["dc2", "dc2"], at_s=1}', "fault[1].link: no link dc2->dc2 in overl"),
        (
            '{kind="pause", for_s=1, at_s=1}',
            "fault[1]: give exactly one of site and scheduler; it has none",
        ),
        (
            '{kind="cut", at_s=1}',
            "fault[1]: give exactly one of link, pair and site; it has none",
        ),
        (
            '{kind="cut", link=["dc1", "dc2"], site="dc1", at_s=1}',
            "fault[1]: give exactly one of link, pair and site; it has link and site",
        ),
        (
            '{kind="slow", factor=2, at_s=1}',
            "fault[1]: give exactly one of site, link and pair; it has none",
        ),
        (
            '{kind="outages", up_s=1, down_s=1}',
            "fault[1]: give exactly one of link, pair, site and all; it has none",
        ),
        (
            '{kind="outages", up_s=1, down_s=1, all=true, site="dc1"}',
            "fault[1]: give exactly one of link, pair, site and all; it has site and all",
        ),
        (
            '{kind="outages", up_s=1, down_s=1, pair=["dc3", "dc1"]}',
            "fault[1].pair: no link dc1->dc3 in overlay 'bend'; dc1 has links to dc2",
        ),
        ('{kind="outages", up_s=1, down_s=1, site="x"}', "fault[1].site: no site 'x' in overlay"),
        ('{kind="sleep", awake_s=1, asleep_s=1, site="x"}', "fault[1].site: no site 'x' in over"),
        (
            '{kind="partition", groups=[["dc1"], ["dc22"]], at_s=1}',
            "fault[1].groups[1][0]: no site 'dc22' in overlay 'bend'; did you mean 'dc2'?",
        ),
        (
            '{kind="partition", groups=[["dc1"], ["dc2", "dc1"]], at_s=1}',
            "fault[1].groups[1][1]: dc1 is in a group already; name it once",
        ),
        (
            '{kind="partition", groups=[["dc1", "dc2", "dc3"]], at_s=1}',
            "fault[1].groups: no link of overlay 'bend' leads from one group to another, so not",
        ),
        ('{kind="partition", groups=[["dc1"]]}', "fault[1]: give exactly one of at_s and round"),
        # what
        (
            '{kind="clock", site="dc1", at_s=1}',
            "fault[1]: a clock with neither offset_s nor drift is right; give one of them",
        ),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(entry: str, complaint: str) -> None:
    with pytest.raises(FaultError, match=f"^{re.escape(complaint)}"):
        read(f"{GOOD}, {entry}")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ('{kind="kil", site="dc1"}', "fault[1].kind: no such kind 'kil'; did you mean 'kill'?"),
        ('{site="dc1"}', "fault[1].kind: this key is required; give one of kill, pause, cut, di"),
        ('{kind="kill"}', "fault[1].site: this key is required"),
        ('{kind="kill", sit="dc1"}', "fault[1].sit: no such key; did you mean 'site'?"),
        ('{kind="kill", site="dc1", round=0}', "fault[1].round: must be an integer >= 1, not 0"),
        ('{kind="kill", site="dc1", at_s=-1}', "fault[1].at_s: must be a number >= 0, not -1"),
        ('{kind="kill", site="dc1", at_s=inf}', "fault[1].at_s: must be a finite number, not inf"),
        ('{kind="pause", site="dc1", at_s=1}', "fault[1].for_s: this key is required"),
        ('{kind="pause", site="dc1", for_s=0}', "fault[1].for_s: must be a number > 0, not 0"),
        ('{kind="cut", link=["dc1"]}', "fault[1].link: must be an array of length 2, not ['dc1']"),
        ('{kind="slow", site="dc1"}', "fault[1].factor: this key is required"),
        ('{kind="slow", site="dc1", factor=1}', "fault[1].factor: must be a number > 1, not 1"),
        ('{kind="outages", all=true, up_s=1}', "fault[1].down_s: this key is required"),
        ('{kind="outages", all=true, up_s=0}', "fault[1].up_s: must be a number > 0, not 0"),
        (
            '{kind="sleep", site="dc1", awake_s=1, asleep_s=1, at_s=1}',
            "fault[1].at_s: no such key",
        ),
        ('{kind="clock", site="dc1", drift=-1}', "fault[1].drift: must be a number > -1, not -1"),
    ],
)
def test_an_entry_that_is_no_fault_is_refused(entry: str, complaint: str) -> None:
    with pytest.raises(TomlError, match=f"^{re.escape(complaint)}"):
        read(f"{GOOD}, {entry}")


def test_any_round_may_come_where_nobody_knows_how_many_there_are() -> None:
    [found] = script([KillFault(site="dc1", round=10**6)], OVERLAY)
    assert found.round == 10**6


def test_a_pause_and_a_clock_name_their_entry_without_a_file() -> None:
    with pytest.raises(FaultError, match=r"^fault\[0\]\.site"):
        script([PauseFault(site="x", for_s=1.0, at_s=0.0)], OVERLAY)
    good = CutFault(site="dc1", at_s=0.0)
    with pytest.raises(FaultError, match=r"^fault\[1\]\.site"):
        script([good, ClockFault(site="x", drift=1e-5, at_s=0.0)], OVERLAY)
    with pytest.raises(FaultError, match=r"^fault\[0\]\.link"):
        script([SlowFault(link=("dc1", "dc3"), factor=2.0, at_s=0.0)], OVERLAY)


# what is drawn

OUTAGES = '{kind="outages", up_s=8, down_s=2, %s}'


def periods(entry: str, count: int, seed: int = 0) -> list[list[tuple[float, float]]]:
    """Return when the first periods of each thing in an entry begin, and how long they last."""
    faults = decode_toml(f"fault = [{entry}]", File).fault
    found = []
    for each in script(faults, OVERLAY, seed=seed):
        moments = list(islice(each.moments(), count))
        assert every(at_s == what.at_s for at_s, what in moments)
        found.append([(at_s, what.action.for_s) for at_s, what in moments])  # type: ignore[union-attr]
    return found


def test_outages_of_all_are_those_of_each_pair_by_itself() -> None:
    found = script(decode_toml(f"fault = [{OUTAGES % 'all=true'}]", File).fault, OVERLAY)
    assert [each.label for each in found] == [
        "outage of dc1<->dc2",
        "outage of dc1<->dc3",
        "outage of dc2<->dc3",
    ]
    links = [each.action.links for each in found]  # type: ignore[union-attr]
    assert links == [((0, 1), (1, 0)), ((2, 0),), ((1, 2), (2, 1))]
    drawn = periods(OUTAGES % "all=true", 3)
    assert len({at_s for each in drawn for at_s, _ in each}) == 9  # no two alike


def test_periods_follow_from_the_seed_the_entry_and_what_it_happens_to_alone() -> None:
    entry = OUTAGES % 'link=["dc1", "dc2"]'
    [drawn], [again], [other] = periods(entry, 50), periods(entry, 50), periods(entry, 50, seed=1)
    assert drawn == again
    assert drawn[:10] == periods(entry, 10)[0]
    assert drawn != other
    assert drawn not in periods(f"{GOOD}, {entry}", 50)[1:]
    assert drawn not in periods(OUTAGES % 'link=["dc2", "dc1"]', 50)


@pytest.mark.parametrize("seed", range(3))
def test_periods_last_as_long_on_average_as_was_asked(seed: int) -> None:
    [drawn] = periods('{kind="sleep", site="dc1", awake_s=8, asleep_s=2}', 4000, seed)
    asleep_s = [for_s for _, for_s in drawn]
    awake_s = [after_s - (at_s + for_s) for (at_s, for_s), (after_s, _) in pairwise(drawn)]
    for found, mean_s in ((asleep_s, 2.0), (awake_s, 8.0)):
        assert min(found) >= 0.0
        # Exponential: the deviation is the mean, too. 4000 give the mean to 1.6 %.
        assert fmean(found) == pytest.approx(mean_s, rel=0.08)
        assert pstdev(found) == pytest.approx(mean_s, rel=0.12)


def test_fixed_periods_are_the_mean_and_the_last_ends_when_all_is_to_be_well() -> None:
    fixed = 'site="dc2", distribution="fixed", until_s=21.0'
    assert periods(OUTAGES % fixed, 9) == [[(8.0, 2.0), (18.0, 2.0)]]
    fixed = 'site="dc2", distribution="fixed", until_s=19.5'
    assert periods(OUTAGES % fixed, 9) == [[(8.0, 2.0), (18.0, 1.5)]]


def test_a_fault_of_a_round_has_no_moment() -> None:
    assert [*read('{kind="kill", site="dc1", round=1}')[0].moments()] == []


def test_each_period_says_how_long_it_lasts() -> None:
    [sleep] = read('{kind="sleep", site="dc1", awake_s=4, asleep_s=1.5, distribution="fixed"}')
    at_s, what = next(sleep.moments())
    assert (at_s, what.label, what.kind) == (4.0, "sleep of dc1 for 1.5 s", "sleep")
    assert what.action == Pause(0, 1.5)


def test_what_is_played_comes_in_time_and_no_more_is_drawn_than_that() -> None:
    [sleep] = read('{kind="sleep", site="dc1", awake_s=4, asleep_s=1, distribution="fixed"}')
    drawn: list[float] = []
    agenda: list[tuple[float, Callable[[Scripted], None], Scripted]] = []
    happened: list[str] = []

    def moments() -> Iterator[tuple[float, Scripted]]:
        for at_s, what in sleep.moments():
            drawn.append(at_s)
            yield at_s, what

    play(moments(), lambda *call: agenda.append(call), lambda what: happened.append(what.label))
    for count in (1, 2, 3):
        assert len(drawn) == count
        [(at_s, callback, what)] = agenda
        agenda.clear()
        assert at_s == 5.0 * count - 1.0
        callback(what)
        assert len(happened) == count


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0.1, 9), st.sampled_from([1.5, 2.0, 4.0]))))
def test_a_link_s_factors_are_the_product_of_what_is_in_force(
    slows: list[tuple[float, float, float]],
) -> None:
    faults: list[Fault] = [CutFault(pair=("dc1", "dc2"), at_s=3.0, for_s=1.0)]
    faults += [
        SlowFault(link=("dc1", "dc2"), factor=by, at_s=at_s, for_s=for_s)
        for at_s, for_s, by in slows
    ]
    faults.append(CutFault(link=("dc2", "dc3"), at_s=0.0))  # another link's
    changes = [*link_factors(script(faults, OVERLAY), (0, 1))]
    assert [at_s for at_s, _ in changes] == sorted(at_s for at_s, _ in changes)
    assert changes[-1][1] == 1.0
    for moment_s in (0.05, 2.95, 3.5, 4.05, 9.05, 17.05):
        now = 1.0
        for at_s, factor in changes:
            if at_s <= moment_s:
                now = factor
        expected = [1 / by for at_s, for_s, by in slows if at_s <= moment_s < at_s + for_s]
        cut = 0.0 if 3.0 <= moment_s < 4.0 else 1.0
        assert now == pytest.approx(cut * math.prod(expected))


# overlapping faults


def test_a_link_cut_while_slow_is_slow_again_when_the_cut_ends() -> None:
    rates = Factors[str]()
    assert rates.current("a->b") == 1.0
    assert rates.begin("a->b", 0.25) == 0.25
    assert rates.begin("a->b", 0.0) == 0.0
    assert rates.begin("a->b", 0.5) == 0.0
    assert rates.end("a->b", 0.0) == 0.125
    assert rates.end("a->b", 0.25) == 0.5
    assert rates.current("b->a") == 1.0
    assert rates.end("a->b", 0.5) == 1.0


def test_a_link_cut_twice_is_cut_until_both_end() -> None:
    rates = Factors[int]()
    rates.begin(7, 0.0)
    rates.begin(7, 0.0)
    assert rates.end(7, 0.0) == 0.0
    assert rates.end(7, 0.0) == 1.0


def test_ending_what_is_not_in_force_is_refused() -> None:
    rates = Factors[int]()
    rates.begin(7, 0.5)
    with pytest.raises(FaultError, match=r"factor 0\.25 of 7 is not in force; end what was begun"):
        rates.end(7, 0.25)
    with pytest.raises(FaultError, match=r"factor 0\.5 of 8 is not in force"):
        rates.end(8, 0.5)


@given(
    st.lists(st.floats(0.01, 100.0), max_size=6).flatmap(
        lambda begun: st.tuples(st.just(begun), st.permutations(begun))
    )
)
def test_what_holds_is_the_product_in_whatever_order_factors_began(
    orders: tuple[list[float], list[float]],
) -> None:
    begun, other = orders
    one, two = Factors[int](), Factors[int]()
    for factor in begun:
        one.begin(0, factor)
    for factor in other:
        two.begin(0, factor)
    assert one.current(0) == two.current(0) == pytest.approx(math.prod(begun))
    for factor in other:
        one.end(0, factor)
    assert one.current(0) == 1.0


def test_the_module_knows_no_clock_and_no_world() -> None:
    tree = ast.parse(Path(faults.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert not {"asyncio", "time", "random", "os", "pathlib", "socket"} & modules
    assert {m for m in modules if m and m.startswith("anabranch")} == {
        "anabranch._typed_toml",
        "anabranch.overlay",
    }
