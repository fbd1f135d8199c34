"""Letters keep the mean whatever is lost, doubled or late on the way, and bound what is kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anabranch.exchange.actions import Action, LetterArrived, LetterTruncated, Send
from anabranch.exchange.letters import FIRST, Letters
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import Letter
from anabranch.period.peers import GossipRule

ELEMENTS = 40
BOUNDS = [(0, 10), (10, 23), (23, 40)]


def is_answer(send: Send) -> bool:
    return isinstance(send.message, Letter) and send.message.is_answer


class Net:
    """Sites that gossip, and an adversary between them.

    What leaves a site is handed on in any order; chunks are doubled; connections break, with all
    that is on its way, and letters go again.
    """

    def __init__(
        self,
        sites: int,
        seed: int,
        rule: GossipRule,
        counts: Callable[[int], float] = lambda behind: 1.0,
        wire: Wire = Wire.FLOAT32,
    ) -> None:
        self.draw = np.random.default_rng(seed)
        self.rule = rule
        self.models = [self.draw.normal(size=ELEMENTS).astype(np.float32) for _ in range(sites)]
        self.first = np.mean(self.models, axis=0, dtype=np.float64)
        self.sites = [
            Letters(site, model, BOUNDS, wire, rule=rule, counts=counts)
            for site, model in enumerate(self.models)
        ]
        self.flying: list[tuple[Letter, bytes]] = []
        self.unsent: dict[tuple[int, int], list[Send]] = {}
        # Letters, and answers, that have come: (from, to, number, whether it is an answer).
        self.said: list[tuple[int, int, int, bool]] = []
        self.ends: list[tuple[int, int, int]] = []  # letters of which the rest was taken back

    def write(self) -> None:
        site = int(self.draw.integers(len(self.sites)))
        letters = self.sites[site]
        may_be = [to for to in range(len(self.sites)) if to != site and to not in letters.awaited]
        count = int(self.draw.integers(len(may_be) + 1))
        chosen = self.draw.choice(may_be, count, replace=False).tolist() if count else []
        self.put(letters.write(chosen))

    def put(self, sends: list[Send]) -> None:
        for send in sends:
            self.unsent.setdefault(send.message.path, []).append(send)

    def leave(self) -> None:
        """One chunk leaves its site, perhaps twice."""
        waiting = [path for path, sends in self.unsent.items() if sends]
        if waiting:
            path = waiting[self.draw.integers(len(waiting))]
            send = self.unsent[path].pop(0)
            assert not callable(send.payload)
            for _ in range(1 + (self.draw.random() < 0.2)):
                self.flying.append((send.message, bytes(send.payload)))

    def arrive(self) -> None:
        """One chunk comes, in any order."""
        if self.flying:
            message, payload = self.flying.pop(int(self.draw.integers(len(self.flying))))
            sender, to = message.path
            receipt = self.sites[to].receive(message, len(payload))
            if receipt.target is not None:
                receipt.target[:] = payload
            for action in self.sites[to].received(receipt):
                if isinstance(action, Send):
                    self.put([action])
                    continue
                assert isinstance(action, LetterArrived)
                assert action.sender == sender
                self.said.append((sender, to, action.number, action.is_answer))

    def answer(self) -> None:
        """A site hears, perhaps not for the first time, that its letter has come."""
        if self.said:
            self.tell(*self.said[self.draw.integers(len(self.said))])

    def tell(self, sender: int, to: int, number: int, is_answer: bool) -> None:
        if is_answer or self.rule != "pairs":  # which are answered by letters
            self.sites[sender].settled(to, number, is_answer)

    def break_off(self) -> None:
        """A connection breaks: what was on it is lost, and what was not sent goes again too."""
        sender, to = self.draw.choice(len(self.sites), 2, replace=False)
        path = int(sender), int(to)
        self.flying = [each for each in self.flying if each[0].path != path]
        self.unsent[path] = self.sites[path[0]].again(path[1])

    def take_back(self) -> None:
        """A site takes back what it has not sent of a letter. Its connection does not break."""
        site = int(self.draw.integers(len(self.sites)))
        to = self.sites[site].oldest
        if to is None:
            return
        waiting = self.unsent.get((site, to), [])
        unsent = [send for send in waiting if not is_answer(send)]
        self.unsent[site, to] = [send for send in waiting if is_answer(send)]
        told = self.sites[site].take_back(to, [send.message.chunk for send in unsent])
        for each in told:
            if isinstance(each, LetterTruncated):
                self.ends.append((site, to, each.number))
            elif isinstance(each, LetterArrived):
                self.said.append((to, site, each.number, True))

    def use(self) -> None:
        self.sites[self.draw.integers(len(self.sites))].use()

    def step(self) -> None:
        """A site's model is one step further, and unchanged: staleness alone matters here."""
        self.sites[self.draw.integers(len(self.sites))].steps += 1

    def settle(self) -> None:
        """Hand on all that is on its way, and use it, until nothing is left."""
        while self.flying or any(self.unsent.values()):
            self.leave()
            self.arrive()
        for letters in self.sites:
            letters.use()
        for each in self.said:
            self.tell(*each)
        for sender, to, number in self.ends:
            self.sites[sender].settled(to, number, False)
        for letters in self.sites:
            assert not letters.awaited
            assert not letters.owes

    def mean(self) -> np.ndarray:
        """Return the weighted mean over the sites, shape (elements,)."""
        weighted = np.mean([each.weighted() for each in self.sites], axis=0, dtype=np.float64)
        held = np.empty(ELEMENTS, np.float32)
        agreed = Letters(0, held, BOUNDS)
        everyone = {i: each.weights for i, each in enumerate(self.sites)}
        mean = weighted.astype(np.float32)
        agreed.agree(mean, everyone, [(0, len(mean), [*everyone])])
        return held


@pytest.mark.parametrize("rule", ["pairs", "push-sum"])
@pytest.mark.parametrize("seed", range(50))
def test_the_mean_is_kept_under_loss_repetition_and_any_order(seed: int, rule: GossipRule) -> None:
    net = Net(2 + seed % 5, seed, rule)
    kinds = [net.write, net.leave, net.arrive, net.arrive, net.answer, net.use, net.break_off]
    for _ in range(400):
        kinds[net.draw.integers(len(kinds))]()
    net.settle()
    weights = np.sum([each.weights for each in net.sites], axis=0)
    assert weights == pytest.approx([len(net.sites)] * len(BOUNDS))
    assert net.mean() == pytest.approx(net.first, abs=2e-5)


@pytest.mark.parametrize("wire", [Wire.FLOAT16, Wire.BFLOAT16])
@pytest.mark.parametrize("seed", range(5))
def test_pairs_keep_the_mean_where_the_wire_rounds(seed: int, wire: Wire) -> None:
    net = Net(2 + seed, seed, "pairs", wire=wire)
    kinds = [net.write, net.leave, net.arrive, net.arrive, net.answer, net.use, net.break_off]
    for _ in range(400):
        kinds[net.draw.integers(len(kinds))]()
    net.settle()
    # Both ends move by what the wire carries: what it rounds away is in neither.
    assert net.mean() == pytest.approx(net.first, abs=2e-6)


@pytest.mark.parametrize("rule", ["pairs", "push-sum"])
@pytest.mark.parametrize("seed", range(20))
def test_the_mean_is_kept_where_letters_are_taken_back(seed: int, rule: GossipRule) -> None:
    net = Net(3, seed, rule)
    kinds = [net.write, net.leave, net.arrive, net.answer, net.use, net.take_back]
    for _ in range(400):
        kinds[net.draw.integers(len(kinds))]()
        for sender, to, number in net.ends:  # its end is heard after what was sent of it
            if not any(message.path == (sender, to) for message, _ in net.flying):
                net.sites[sender].settled(to, number, False)
    net.settle()
    weights = np.sum([each.weights for each in net.sites], axis=0)
    assert weights == pytest.approx([3.0] * len(BOUNDS))
    assert net.mean() == pytest.approx(net.first, abs=2e-5)


@pytest.mark.parametrize("seed", range(10))
def test_old_models_count_less_and_weights_add_up(seed: int) -> None:
    net = Net(4, seed, "push-sum", counts=lambda behind: 1.0 / (1 + behind))
    kinds = [net.write, net.leave, net.arrive, net.answer, net.use, net.step]
    for _ in range(400):
        kinds[net.draw.integers(len(kinds))]()
    net.settle()
    weights = np.sum([each.weights for each in net.sites], axis=0)
    assert weights == pytest.approx([4.0] * len(BOUNDS))


def test_gossip_comes_to_the_mean_and_plain_averages_do_not() -> None:
    ends = {}
    rules: list[GossipRule] = ["pairs", "push-sum", "plain"]
    for rule in rules:
        net = Net(5, 3, rule)
        for _ in range(3000):
            for act in (net.write, net.leave, net.leave, net.arrive, net.arrive, net.answer):
                act()
            net.use()
        net.settle()
        ends[rule] = max(np.abs(each - net.first).max() for each in net.models)
        spread = np.ptp(net.models, axis=0).max()
        assert spread < 1e-3
    assert ends["pairs"] < 1e-3
    assert ends["push-sum"] < 1e-3
    assert ends["plain"] > 0.05


def test_an_old_letter_counts_by_what_its_model_is_behind() -> None:
    heard: list[int] = []

    def counts(behind: int) -> float:
        heard.append(behind)
        return 0.5

    one = Letters(0, np.full(ELEMENTS, 4.0, np.float32), BOUNDS, rule="push-sum")
    model = np.zeros(ELEMENTS, np.float32)
    other = Letters(1, model, BOUNDS, rule="push-sum", counts=counts)
    one.steps, other.steps = 2, 5
    hand_over(one, other)
    assert heard == [3, 3, 3]
    other.use()
    # Half of 4.0 weighs 1/4, beside 1; the other quarter falls to the model itself.
    assert model == pytest.approx(4.0 * 0.25 / 1.25)
    assert other.weights == pytest.approx([1.5] * 3)


def test_what_was_learnt_on_the_way_is_kept_by_pairs() -> None:
    one, other = np.zeros(ELEMENTS, np.float32), np.full(ELEMENTS, 4.0, np.float32)
    first, second = Letters(0, one, BOUNDS), Letters(1, other, BOUNDS)
    answers = hand_over(first, second)
    one += 1.0  # a step while the letter is on its way
    assert second.use()
    assert (other == 2.0).all()
    other += 3.0  # and one while the answer is
    said = [action for send in answers for action in take(first, send)]
    assert said == [LetterArrived(1, FIRST, True)]
    assert first.use()
    assert not first.use()
    assert (one == 3.0).all()
    assert second.settled(0, FIRST, is_answer=True)
    assert not second.settled(0, FIRST, is_answer=True)


def test_answers_under_way_move_a_model_by_half_of_the_differences_at_most() -> None:
    model = np.zeros(ELEMENTS, np.float32)
    letters = Letters(0, model, BOUNDS)
    answers: dict[int, list[float]] = {}
    for sender in (1, 2, 3, 4, 5, 6):
        if sender == 6:  # the first one's answer has come
            assert letters.settled(1, FIRST, is_answer=True)
        far = Letters(sender, np.full(ELEMENTS, 8.0, np.float32), BOUNDS)
        said = [action for send in far.write([0]) for action in take(letters, send)]
        weights = [each.message for each in said if isinstance(each, Send)]
        answers[sender] = [each.weight for each in weights if isinstance(each, Letter)]
    assert answers == {
        1: [0.5] * 3,
        **dict.fromkeys((2, 3, 4, 5), [0.0] * 3),
        6: [0.5] * 3,
    }
    letters.use()
    assert (model == 8.0).all()  # half of the way by the first, as far by the last, and no further


def take(letters: Letters, send: Send) -> list[Action]:
    assert isinstance(send.message, Letter)
    assert not callable(send.payload)
    receipt = letters.receive(send.message, len(send.payload))
    assert receipt.target is not None
    receipt.target[:] = send.payload
    return letters.received(receipt)


def hand_over(one: Letters, other: Letters) -> list[Send]:
    """Hand a letter over; return what answers it."""
    answers = [action for send in one.write([1]) for action in take(other, send)]
    return [action for action in answers if isinstance(action, Send)]


def test_copies_are_counted_and_given_up() -> None:
    letters = Letters(0, np.zeros(ELEMENTS, np.float32), BOUNDS, rule="push-sum")
    letters.write([1, 2])
    assert (letters.copies, letters.oldest) == (1, 1)
    letters.steps = 4
    letters.write([3])
    assert letters.copies == 2
    assert letters.take_back(1, [0, 1, 2]) == []  # nothing of it was sent
    assert [letters.cut_short(to) for to in (1, 2, 3)] == [None, None, None]
    assert letters.take_back(2, [2]) == [LetterTruncated(2, FIRST)]
    assert [letters.cut_short(to) for to in (1, 2, 3)] == [None, FIRST, None]
    assert (letters.copies, letters.oldest, {*letters.awaited}) == (1, 3, {2, 3})
    assert letters.again(2) == []
    letters.use()
    # A third each; half of its own third again; and what it took back of the first two.
    assert letters.weights == pytest.approx([1 / 6 + 1 / 3, 1 / 6 + 1 / 3, 1 / 6 + 2 / 3])


TERMS = Terms(Op.LETTER, Wire.FLOAT32, ELEMENTS).code


@pytest.mark.parametrize(
    ("letter", "size_bytes", "error"),
    [
        (Letter(FIRST, 0, 0, (1, 0), TERMS + 32), 40, OutOfPlaceMessage),
        (Letter(FIRST, 1, 0, (1, 0), TERMS), 40, OutOfPlaceMessage),
        (Letter(1, 0, 0, (1, 0), TERMS), 40, OutOfPlaceMessage),
        (Letter(FIRST, 0, 3, (1, 0), TERMS), 40, OutOfPlaceMessage),
        (Letter(FIRST, 0, -1, (1, 0), TERMS), 40, OutOfPlaceMessage),
        (Letter(FIRST, 0, 0, (1, 2, 0), TERMS), 40, OutOfPlaceMessage),
        (Letter(FIRST, 0, 1, (1, 0), TERMS), 40, OutOfPlaceMessage),
        (Letter(FIRST, 0, 0, (1, 0), TERMS, weight=0.0), 40, MalformedMessage),
        (Letter(FIRST, 0, 0, (1, 0), TERMS, weight=float("nan")), 40, MalformedMessage),
        (Letter(FIRST, 0, 0, (1, 0), TERMS, weight=1e30), 40, MalformedMessage),
        (Letter(FIRST, 0, 0, (1, 0), TERMS, steps=-1), 40, MalformedMessage),
        (Letter(FIRST, 0, 0, (1, 0), TERMS, is_answer=True), 40, OutOfPlaceMessage),
    ],
)
def test_what_can_be_no_letter_is_refused(
    letter: Letter, size_bytes: int, error: type[Exception]
) -> None:
    letters = Letters(0, np.ones(ELEMENTS, np.float32), BOUNDS)
    with pytest.raises(error):
        letters.receive(letter, size_bytes)
    letters.use()
    assert letters.weights == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("rule", ["pairs", "push-sum", "plain"])
def test_what_has_come_whole_is_confirmed_again_once_a_lane_is_made_again(rule: GossipRule) -> None:
    one, other = (
        Letters(site, np.zeros(ELEMENTS, np.float32), BOUNDS, rule=rule) for site in (0, 1)
    )
    sends = one.write([1])
    for send in sends[:-1]:
        take(other, send)
    assert other.to_confirm(0) == []  # a letter that is half there is not
    answers = [each for send in sends for each in take_again(other, send)]
    # By pairs a letter is answered, and the answer confirmed by the letter's sender.
    assert other.to_confirm(0) == ([] if rule == "pairs" else [(FIRST, False)])
    assert one.to_confirm(1) == []
    for answer in answers:
        take(one, answer)
    assert one.to_confirm(1) == ([(FIRST, True)] if rule == "pairs" else [])


def take_again(letters: Letters, send: Send) -> list[Send]:
    """Take a chunk that may have come before; return its answer, also where it was given then."""
    assert isinstance(send.message, Letter)
    assert not callable(send.payload)
    receipt = letters.receive(send.message, len(send.payload))
    if receipt.target is not None:
        receipt.target[:] = send.payload
    letters.received(receipt)
    given = letters._answers.get((send.message.path[0], send.message.exchange), {})
    return [given[send.message.chunk]] if send.message.chunk in given else []
