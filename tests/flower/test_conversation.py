"""Who has a message and whose reply counts, in virtual time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from anabranch.flower._conversation import Conversation, NoNodesLeft, Output
from anabranch.flower._federation import Federation
from anabranch.merge import AnyMerge, Mean, OutlierFilter
from anabranch.pace import AnyPace, FedBuff, FlR2sp

ONE_GROUP = FlR2sp(groups=1, fraction=1.0, relaxation=0.0)
Model = dict[str, npt.NDArray[np.float32]]


def model(value: float) -> Model:
    return {"w": np.full(3, value, np.float32)}


class Talk:
    """A conversation whose messages arrive at once; message ``5-2`` is node 5's second."""

    def __init__(
        self,
        pace: AnyPace,
        nodes: tuple[int, ...],
        merge: AnyMerge | None = None,
        silent_s: float = 60.0,
    ) -> None:
        self.federation = Federation(pace, merge or Mean(), model(0.0))
        self.of = Conversation(self.federation, silent_s, failures=3, at_least=2)
        self.sent: list[str] = []
        self.lines: list[str] = []
        self._times = Counter[int]()
        self.there(*nodes, at_s=0.0)

    def do(self, output: Output, at_s: float) -> list[str]:
        """Send what is to be sent; return the messages."""
        self.lines += [line.text for line in output.lines]
        new = []
        for node in output.send:
            assert not any(out.startswith(f"{node}-") for out in self.of.out)
            self._times[node] += 1
            new.append(f"{node}-{self._times[node]}")
            self.of.sent(node, new[-1], at_s)
        self.sent += new
        return new

    def there(self, *nodes: int, at_s: float) -> list[str]:
        return self.do(self.of.there(nodes, at_s), at_s)

    def returned(self, message: str, value: float, at_s: float) -> list[str]:
        return self.do(self.of.returned(message, model(value), 10, at_s), at_s)

    def failed(self, message: str, at_s: float, counts: bool = True) -> list[str]:
        return self.do(self.of.failed(message, "it broke", at_s, counts), at_s)

    def look(self, at_s: float) -> list[str]:
        return self.do(self.of.look(at_s), at_s)

    @property
    def value(self) -> float:
        return float(self.federation.arrays["w"][0])


def test_groups_take_turns_in_order_whichever_is_ready_first() -> None:
    talk = Talk(FlR2sp(groups=2, fraction=1.0, relaxation=0.0), (10, 11, 12, 13))
    assert talk.sent == ["10-1", "11-1", "12-1", "13-1"]  # groups 0, 1, 0, 1
    assert talk.returned("11-1", 4.0, 1.0) == talk.returned("13-1", 4.0, 2.0) == []
    assert talk.value == 0.0
    assert talk.returned("10-1", 2.0, 3.0) == []
    assert talk.returned("12-1", 2.0, 4.0) == ["10-2", "12-2", "11-2", "13-2"]
    assert talk.value == pytest.approx((2.0 / 2) / 2 + 4.0 / 2)
    assert talk.federation.version == 2


def test_turns_are_apart_by_a_part_of_what_rounds_take() -> None:
    talk = Talk(FlR2sp(groups=2, fraction=1.0, relaxation=1.0), (10, 11))
    assert talk.returned("10-1", 1.0, 8.0) == ["10-2"]  # its round took 8 s, so T / M is 4 s
    assert talk.returned("11-1", 1.0, 8.5) == []
    assert talk.federation.due_s == pytest.approx(12.0)
    assert talk.look(11.9) == []
    assert talk.look(12.1) == ["11-2"]


def test_each_reply_counts_once() -> None:
    talk = Talk(FedBuff(size=1), (1, 2))
    talk.returned("1-1", 2.0, 1.0)
    before = talk.value, talk.federation.version
    assert talk.returned("1-1", 2.0, 1.1) == []
    assert talk.returned("no such message", 2.0, 1.1) == []
    assert (talk.value, talk.federation.version) == before


def test_a_silent_node_is_gone_on_without_and_its_late_reply_is_discarded_by_name() -> None:
    talk = Talk(ONE_GROUP, (1, 2, 3), silent_s=60.0)
    talk.returned("1-1", 6.0, 10.0)
    talk.returned("2-1", 6.0, 10.0)
    assert talk.look(59.9) == []
    assert talk.look(60.1) == ["1-2", "2-2"]
    assert talk.value == pytest.approx(6.0)  # it is gone: all the way to the mean of two
    assert "node 3 has been silent for 60 s; the others go on without it" in talk.lines
    assert talk.there(1, 2, 3, at_s=62.0) == []  # it has a message still
    assert talk.returned("3-1", 900.0, 70.0) == []
    assert talk.value == pytest.approx(6.0)
    assert talk.lines[-1] == "the reply of node 3 came after 70.0 s, and does not count"
    assert talk.there(1, 2, 3, at_s=72.0) == ["3-2"]


def test_a_node_that_fails_late_is_no_different() -> None:
    talk = Talk(ONE_GROUP, (1, 2, 3))
    talk.look(61.0)
    for message in ("1-1", "2-1", "3-1"):
        talk.failed(message, 62.0)
    assert talk.lines[-1] == "node 3, given up before, failed after 62.0 s: it broke"
    assert talk.there(1, 2, 3, at_s=64.0) == ["1-2", "2-2", "3-2"]


def test_nodes_that_come_later_take_part() -> None:
    talk = Talk(ONE_GROUP, (1,))
    assert talk.sent == []
    assert talk.lines == ["waiting for nodes: 1 of 2 are there"]
    assert talk.there(1, 7, at_s=2.0) == ["1-1", "7-1"]
    assert talk.there(1, 7, 4, at_s=4.0) == ["4-1"]
    talk.returned("1-1", 3.0, 5.0)
    talk.returned("7-1", 3.0, 5.0)
    assert talk.returned("4-1", 3.0, 6.0) == ["1-2", "7-2", "4-2"]
    assert talk.value == pytest.approx(3.0)


def test_a_node_that_goes_is_gone_on_without_and_may_come_back() -> None:
    talk = Talk(ONE_GROUP, (1, 2, 3))
    talk.returned("1-1", 6.0, 1.0)
    talk.returned("2-1", 6.0, 1.0)
    assert talk.there(1, 2, at_s=2.0) == ["1-2", "2-2"]
    assert "node 3 is gone; the others go on without it" in talk.lines
    assert talk.failed("3-1", 60.0, counts=False) == []
    assert talk.there(1, 2, 3, at_s=62.0) == ["3-2"]


def test_what_a_node_has_returned_counts_although_it_went_before_its_turn() -> None:
    talk = Talk(ONE_GROUP, (1, 2))
    talk.returned("1-1", 6.0, 1.0)
    talk.there(2, at_s=2.0)
    assert talk.returned("2-1", 4.0, 3.0) == ["2-2"]
    assert talk.value == pytest.approx(5.0)
    assert talk.lines[-1] == "node 1 is gone; the others go on without it"


def test_an_outlier_gets_no_more_messages() -> None:
    talk = Talk(ONE_GROUP, (1, 2, 3, 4), OutlierFilter(beta=0.5, patience=2))
    talk.returned("1-1", 1.0, 1.0)
    talk.returned("2-1", 1.0, 1.0)
    talk.returned("3-1", 1.0, 1.0)
    assert "4-2" in talk.returned("4-1", -1.0, 1.0)
    for node in (1, 2, 3):
        talk.returned(f"{node}-2", talk.value + 1.0, 2.0)
    assert sorted(talk.returned("4-2", talk.value - 1.0, 2.0)) == ["1-3", "2-3", "3-3"]
    assert "node 4 is an outlier, and is barred" in talk.lines
    assert talk.there(1, 2, 3, 4, at_s=4.0) == []


def test_a_node_that_fails_again_and_again_is_sent_no_more() -> None:
    talk = Talk(ONE_GROUP, (1, 2))
    for times in (1, 2, 3):
        talk.failed(f"1-{times}", times * 10.0)
        again = talk.there(1, 2, at_s=times * 10.0 + 2.0)
        assert again == ([f"1-{times + 1}"] if times < 3 else [])
    assert "it has failed 3 times in a row" in talk.lines[-1]
    assert talk.returned("2-1", 5.0, 40.0) == ["2-2"]


def test_failures_in_a_row_end_with_a_model_and_lost_messages_are_none() -> None:
    talk = Talk(FedBuff(size=1), (1, 2))
    for times in range(1, 9):
        if times % 3 == 0:
            talk.returned(f"1-{times}", 1.0, times * 10.0)
        else:
            talk.failed(f"1-{times}", times * 10.0)
            talk.there(1, 2, at_s=times * 10.0 + 2.0)
    for times in range(9, 19):
        talk.failed(f"1-{times}", times * 10.0, counts=False)
        assert talk.there(1, 2, at_s=times * 10.0 + 2.0) == [f"1-{times + 1}"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_a_failure(value: float) -> None:
    talk = Talk(FedBuff(size=1), (1, 2))
    assert talk.returned("1-1", value, 1.0) == []
    assert "node 1 returns elements of 'w' that are not finite" in talk.lines[-1]
    assert talk.value == 0.0


def test_a_run_without_nodes_that_may_take_part_ends() -> None:
    talk = Talk(ONE_GROUP, (1, 2))
    for times in (1, 2, 3):
        for node in (1, 2):
            talk.failed(f"{node}-{times}", times * 10.0)
        if times < 3:
            talk.there(1, 2, at_s=times * 10.0 + 2.0)
    with pytest.raises(NoNodesLeft, match=r"none of 2 nodes is left: 0 .* 2 failed"):
        talk.there(1, 2, at_s=40.0)


def test_a_node_that_takes_no_message_is_gone_on_without() -> None:
    talk = Talk(ONE_GROUP, (1, 2))
    talk.returned("1-1", 6.0, 1.0)
    output = talk.of.returned("2-1", model(6.0), 10, 1.0)
    assert output.send == (1, 2)
    talk.of.sent(1, "1-2", 1.0)
    assert talk.do(talk.of.unsent(2, 1.0), 1.0) == []
    assert talk.lines[-1] == "node 2 takes no message; the others go on without it"
    assert talk.of.returned("1-2", model(8.0), 10, 2.0).send == (1,)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "pace",
    [FlR2sp(groups=3), FlR2sp(groups=3, collects="turn", grouping="delay"), FedBuff(size=4)],
    ids=["literal", "ours", "fedbuff"],
)
def test_whatever_nodes_do_the_run_goes_on_and_holds_little(seed: int, pace: AnyPace) -> None:
    rng = np.random.default_rng(seed)
    rule = OutlierFilter(beta=0.0, patience=3, ends_after=6, most=0.5)
    here = set(range(9))
    talk = Talk(pace, tuple(here), rule, silent_s=9.0)
    ends_s: dict[str, float] = {}
    now_s = looked_s = 0.0
    while now_s < 400.0:
        now_s += 0.2
        for message in talk.of.out:
            if message not in ends_s:
                ends_s[message] = now_s + float(rng.exponential(3.0))
        for message in [each for each in talk.of.out if ends_s[each] <= now_s]:
            if rng.random() < 0.9:
                talk.returned(message, talk.value + float(rng.normal(0.3)), now_s)
            else:
                talk.failed(message, now_s, counts=bool(rng.random() < 0.3))
        if now_s - looked_s > 2.0:
            looked_s = now_s
            here ^= {int(rng.integers(9))}
            talk.there(*here, at_s=now_s)
        talk.look(now_s)
        assert len(talk.of.out) <= 9
        assert len(talk.federation._came) <= 9
    assert talk.federation.version > 30
    assert np.isfinite(talk.value)
