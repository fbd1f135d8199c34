"""A federated server without a network: what counts, who goes on, and what the model becomes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from anabranch.flower._federation import Federation
from anabranch.merge import AnyMerge, Fairness, Mean, Median, OutlierFilter, Staleness
from anabranch.pace import AnyPace, Asp, Bsp, FedBuff, FlR2sp, Safa
from tests.every import every

Arrays = dict[str, npt.NDArray[np.float32]]


def arrays(value: float) -> Arrays:
    return {
        "weight": np.full((2, 3), value, np.float32),
        "bias": np.full(3, -value, np.float32),
    }


def test_two_groups_go_half_of_the_way_in_turn() -> None:
    federation = Federation(FlR2sp(groups=2, fraction=1.0, relaxation=0.0), Mean(), arrays(0.0))
    nodes = (70, 50, 90, 11)
    for node in nodes:
        assert federation.joined(node, 0.0).receivers == (node,)
    assert federation.returned(70, arrays(1.0), 10, 1.0).receivers == ()
    outcome = federation.returned(90, arrays(4.0), 30, 2.0)
    assert outcome.applied == (70, 90)
    assert sorted(outcome.receivers) == [70, 90]
    mean = (1.0 * 10 + 4.0 * 30) / 40
    assert federation.arrays["weight"][0, 0] == pytest.approx(mean / 2)
    assert federation.arrays["bias"][0] == pytest.approx(-mean / 2)
    federation.returned(50, arrays(2.0), 1, 3.0)
    federation.returned(11, arrays(2.0), 1, 4.0)
    assert federation.arrays["weight"][0, 0] == pytest.approx(mean / 4 + 1.0)
    assert federation.version == 2


def test_updates_are_added_where_the_model_is() -> None:
    federation = Federation(
        FlR2sp(groups=2, fraction=1.0, relaxation=0.0), Mean(), arrays(0.0), mixes_models=False
    )
    for node in (0, 1):
        federation.joined(node, 0.0)
    federation.returned(0, arrays(2.0), 1, 1.0)
    federation.returned(1, arrays(2.0), 1, 2.0)  # from 0, as it had pulled
    assert federation.arrays["weight"][0, 0] == pytest.approx(2.0)


def test_a_late_model_weighs_less_in_a_buffer() -> None:
    federation = Federation(FedBuff(size=1), Staleness(a=1.0), arrays(0.0), mixes_models=False)
    for node in (0, 1):
        federation.joined(node, 0.0)
    federation.returned(0, arrays(1.0), 1, 1.0)
    assert federation.arrays["weight"][0, 0] == pytest.approx(1.0)
    federation.returned(1, arrays(1.0), 1, 2.0)  # one version old
    assert federation.arrays["weight"][0, 0] == pytest.approx(1.5)


def test_a_node_that_leaves_counts_no_more_and_may_come_back() -> None:
    federation = Federation(FlR2sp(groups=1, fraction=1.0, relaxation=0.0), Mean(), arrays(0.0))
    for node in (0, 1, 2):
        federation.joined(node, 0.0)
    federation.returned(0, arrays(1.0), 1, 1.0)
    federation.returned(1, arrays(3.0), 1, 1.0)
    outcome = federation.left(2, 2.0)
    assert outcome.applied == (0, 1)
    assert federation.arrays["weight"][0, 0] == pytest.approx(
        2.0
    )  # the mean of those that are here
    assert 2 not in federation
    assert federation.joined(2, 3.0).receivers == (2,)


def test_an_outlier_is_barred_and_let_in_again() -> None:
    rng = np.random.default_rng(0)
    rule = OutlierFilter(beta=0.3, patience=2, ends_after=3)
    federation = Federation(FlR2sp(groups=1, fraction=1.0, relaxation=0.0), rule, arrays(0.0))
    for node in range(4):
        federation.joined(node, 0.0)
    barred, readmitted, now_s = [], [], 0.0
    for _ in range(6):
        base = federation.arrays
        for node in list(range(4)):
            if node not in federation:
                continue
            now_s += 1.0
            sign = -1.0 if node == 3 else 1.0
            model = {
                name: (each + sign + rng.normal(0, 0.1, each.shape)).astype(np.float32)
                for name, each in base.items()
            }
            outcome = federation.returned(node, model, 1, now_s)
            barred += outcome.barred
            readmitted += outcome.readmitted
            assert not {*outcome.receivers} & {*outcome.barred}
    assert barred == [3]
    assert readmitted == [3]
    assert federation.joined(3, now_s).receivers == (3,)


def test_a_blacklist_ends_though_all_are_on_it() -> None:
    rule = OutlierFilter(beta=1.0, patience=1, ends_after=5)
    federation = Federation(FlR2sp(groups=1, fraction=1.0, relaxation=0.0), rule, arrays(0.0))
    for node in range(3):
        federation.joined(node, 0.0)
    rng = np.random.default_rng(1)
    for node in range(3):
        model = {
            name: (each + rng.normal(1.0, 0.1, each.shape)).astype(np.float32)
            for name, each in federation.arrays.items()
        }
        outcome = federation.returned(node, model, 1, 1.0)
    assert {*outcome.barred} == {*outcome.readmitted} == {0, 1, 2}
    assert not federation.barred
    federation.joined(1, 2.0)
    assert 1 in federation


def test_a_step_without_a_share_goes_as_far_as_its_part_of_all_nodes() -> None:
    federation = Federation(Asp(), Mean(), arrays(0.0))
    for node in range(4):
        federation.joined(node, 0.0)
    federation.returned(0, arrays(8.0), 1, 1.0)
    assert federation.arrays["weight"][0, 0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("pace", "merge"),
    [
        (Bsp(), Mean()),
        (Safa(), Mean()),
        (FedBuff(), Median()),
        (FedBuff(), Fairness(q=1.0, lipschitz=1.0)),
    ],
)
def test_what_asks_for_more_than_models_is_refused(pace: AnyPace, merge: AnyMerge) -> None:
    with pytest.raises(ValueError, match="take "):
        Federation(pace, merge, arrays(0.0))


@pytest.mark.parametrize(
    ("model", "examples", "said"),
    [
        ({"weight": np.zeros((2, 3), np.float32)}, 1.0, "'bias' differs"),
        ({**arrays(0.0), "bias": np.zeros(4, np.float32)}, 1.0, "'bias' differs"),
        ({**arrays(0.0), "more": np.zeros(4, np.float32)}, 1.0, "'more' differs"),
        ({**arrays(0.0), "bias": np.float32([0, 1, np.nan])}, 1.0, "'bias' that are not finite"),
        (arrays(0.0), 0.0, "trained on 0.0 examples"),
        (arrays(0.0), float("nan"), "trained on nan examples"),
    ],
)
def test_what_is_no_such_model_is_refused(model: Arrays, examples: float, said: str) -> None:
    federation = Federation(FedBuff(), Mean(), arrays(0.0))
    federation.joined(7, 0.0)
    with pytest.raises(ValueError, match=said):
        federation.returned(7, model, examples, 1.0)


@pytest.mark.parametrize("mixes_models", [True, False])
def test_of_integers_the_largest_counts(mixes_models: bool) -> None:
    first = {"seen": np.array([4], np.int64)}
    federation = Federation(FedBuff(size=2), Mean(), first, mixes_models)
    for node in (0, 1):
        federation.joined(node, 0.0)
    federation.returned(0, {"seen": np.array([8], np.int64)}, 1, 1.0)
    federation.returned(1, {"seen": np.array([7], np.int64)}, 1, 1.0)
    assert federation.arrays["seen"].dtype == np.int64
    assert federation.arrays["seen"][0] == 8


@pytest.mark.parametrize("mixes_models", [True, False])
@pytest.mark.parametrize(
    "pace", [FedBuff(size=2), Asp(), Asp(share=0.6), FlR2sp(groups=2, relaxation=0.0)]
)
def test_buffers_stay_between_what_nodes_return(pace: AnyPace, mixes_models: bool) -> None:
    """Added up as updates, variances that all fell from 1 to .1 would come below zero."""

    def model(variance: float) -> Arrays:
        return {**arrays(0.0), "norm.running_var": np.array([variance], np.float32)}

    federation = Federation(pace, Staleness(a=0.5), model(1.0), mixes_models)
    for node in range(4):
        federation.joined(node, 0.0)
    for node in range(4):  # all began from the first model
        federation.returned(node, model(0.1), 100, 1.0 + node)
    assert federation.version >= 2
    assert 0.1 <= federation.arrays["norm.running_var"][0] < 1.0


def test_buffers_of_other_names_are_said() -> None:
    first = {**arrays(0.0), "codes": np.array([1.0], np.float32)}
    federation = Federation(FedBuff(size=1), Mean(), first, False, buffers=["codes"])
    for node in (0, 1):
        federation.joined(node, 0.0)
    for node in (0, 1):  # node 1 from the first model, too
        federation.returned(node, {**arrays(1.0), "codes": np.float32([0.1])}, 1, 1.0 + node)
    assert federation.arrays["codes"][0] == pytest.approx(0.1)
    assert federation.arrays["weight"][0, 0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("more", "buffers", "said"),
    [
        ({}, ["wieght"], "no array 'wieght'; did you mean 'weight'"),
        ({"seen": np.array([1])}, [], "'seen' is int64"),
        ({"phase": np.array([1j])}, None, "'phase' is complex128"),
    ],
)
def test_buffers_that_cannot_be_are_refused(
    more: Arrays, buffers: list[str] | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Federation(FedBuff(), Mean(), {**arrays(0.0), **more}, buffers=buffers)


def test_running_statistics_hide_no_outlier() -> None:
    """They agree whatever the data's labels are, and may be much larger than what is learnt."""
    first = {**arrays(0.0), "norm.running_var": np.array([1.0], np.float32)}
    pace = FlR2sp(groups=1, fraction=1.0, relaxation=0.0)
    federation = Federation(pace, OutlierFilter(patience=1), first)
    for node in range(4):
        federation.joined(node, 0.0)
    seen = {"norm.running_var": np.array([100.0], np.float32)}
    for node in range(3):
        federation.returned(node, {**arrays(1.0), **seen}, 1, 1.0)
    assert federation.returned(3, {**arrays(-1.0), **seen}, 1, 1.0).barred == (3,)


def test_counters_hide_no_outlier() -> None:
    first = {**arrays(0.0), "batches_seen": np.array([0], np.int64)}
    federation = Federation(
        FlR2sp(groups=1, fraction=1.0, relaxation=0.0), OutlierFilter(patience=1), first
    )
    for node in range(4):
        federation.joined(node, 0.0)
    counted = {"batches_seen": np.array([100], np.int64)}
    for node in range(3):
        federation.returned(node, {**arrays(1.0), **counted}, 1, 1.0)
    assert federation.returned(3, {**arrays(-1.0), **counted}, 1, 1.0).barred == (3,)


def test_no_step_goes_beyond_the_version_that_it_may() -> None:
    federation = Federation(FlR2sp(groups=3, fraction=1.0, relaxation=0.0), Mean(), arrays(0.0))
    for node in range(3):
        federation.joined(node, 0.0)
    federation.until = 1
    federation.returned(1, arrays(1.0), 1, 1.0)
    federation.returned(2, arrays(1.0), 1, 1.0)
    assert federation.version == 0
    outcome = federation.returned(0, arrays(1.0), 1, 2.0)  # which makes all three turns due
    assert (federation.version, outcome.applied, outcome.receivers) == (1, (0,), (0,))
    assert federation.look(2.0).applied == ()
    outcome = federation.go_on(2, 2.0)
    assert (federation.version, outcome.applied, outcome.receivers) == (2, (1,), (1,))
    outcome = federation.go_on(9, 2.0)
    assert (federation.version, outcome.applied, outcome.receivers) == (3, (2,), (2,))


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_each_model_counts_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pace = FlR2sp(groups=3, collects=str(rng.choice(["turn", "fraction"])))  # type: ignore[arg-type]
    rule = OutlierFilter(beta=0.5, patience=2, ends_after=4, most=0.5)
    federation = Federation(pace, rule, arrays(0.0))
    busy: dict[int, int] = {}
    sent, settled = Counter[int](), Counter[int]()
    now_s = 0.0
    for _ in range(900):
        now_s += float(rng.exponential(0.3))
        node = int(rng.integers(9))
        if node in federation and node in busy and rng.random() < 0.85:
            value = float(rng.normal())
            model = {name: (each + value).astype(np.float32) for name, each in arrays(0.0).items()}
            del busy[node]
            outcome = federation.returned(node, model, float(rng.integers(1, 9)), now_s)
        elif node in federation and rng.random() < 0.1:
            busy.pop(node, None)
            outcome = federation.left(node, now_s)
        elif node not in federation:
            busy.pop(node, None)
            outcome = federation.joined(node, now_s)
        else:
            outcome = federation.look(now_s)
        for each in outcome.barred:
            busy.pop(each, None)
        for each in outcome.receivers:
            assert each in federation
            assert each not in busy
            busy[each] = 1
            sent[each] += 1
        settled.update(outcome.applied)
        settled.update(outcome.discarded)
    assert every(settled[node] <= sent[node] for node in settled)
    assert federation.version > 10


def test_a_step_whose_updates_all_weigh_nothing_goes_nowhere() -> None:
    federation = Federation(FedBuff(size=1), Staleness(a=2000.0), arrays(0.0), mixes_models=False)
    for node in (0, 1):
        federation.joined(node, 0.0)
    federation.returned(0, arrays(1.0), 1, 1.0)
    federation.returned(1, arrays(9.0), 1, 2.0)  # one version old
    assert federation.arrays["weight"][0, 0] == pytest.approx(1.0)


def test_what_the_models_type_does_not_have_is_an_error() -> None:
    half = {"weight": np.full((1, 1), 60000, np.float16)}
    federation = Federation(FedBuff(size=1), Mean(), half, mixes_models=False)
    federation.joined(0, 0.0)
    federation.joined(1, 0.0)
    federation.returned(0, {"weight": np.full((1, 1), 65000, np.float16)}, 1, 1.0)
    with pytest.raises(FloatingPointError, match="float16"):
        federation.returned(1, {"weight": np.full((1, 1), 65500, np.float16)}, 1, 1.0)
    with pytest.raises(ValueError, match="1e\\+308 examples"):
        federation.returned(0, half, 1e308, 1.0)
