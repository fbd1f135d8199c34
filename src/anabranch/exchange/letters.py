"""Gossip at one site: its model in letters to neighbours, theirs in letters to it. Pure.

A letter is the sender's model, in chunks; what has come is used between two steps, chunk by chunk:
a letter that is half there is half used. What is made of it is the *rule*:

**Pairs.** The receiver of a chunk x, whose own is y by then, moves by ``a (x - y)`` and answers by
that difference. The sender moves by as much the other way, once the answer has come, from wherever
it is by then: what it has learnt since is kept, and so is the mean over all sites, with what is on
its way.
Differences that are used late may push models past one another, and the further the more of them
are on their way at once. So all letters of a site that are on their way propose half of a model
together, and all answers that it has given and that have not come yet half of one. (Averages that
are a time late are stable while all that move a model in that time add up to less than 1.57;
Olfati-Saber and Murray, IEEE TAC 2004.)

**Push-sum** (Kempe, Dobra and Gehrke, FOCS 2003). Each chunk of a model has a weight. A site that
sends a letter to m neighbours keeps ``1 / (m + 1)`` of each chunk's weight and gives each of them
as much; a chunk becomes the mean of itself and what has come, by weight, and its weight the sum.
So the sum of all chunks, each times its weight, over the sites and what is on its way, is kept, and
the sum of the weights.

**Plain.** A chunk becomes the mean of itself and what has come, each counting alike.

**Loss, repetition, order.** Chunks may come in any order. A letter or answer of which a chunk may
be lost, as its connection has broken, is sent again, whole, and each of its chunks counts once. A
site has one letter to each neighbour on its way, and keeps what it wrote until it has come. Where
that takes too much memory it keeps the oldest no longer: what was not sent of it is taken back, and
what was sent comes, unless its connection breaks. Only what is lost then moves the mean.

**Age.** A merge rule may let a letter count less, by the steps that its model is behind this
site's. In push-sum, what is not used of its weight falls to this site's own model, so that weights
add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from anabranch.exchange.actions import Action, LetterArrived, LetterTruncated, Receipt, Send
from anabranch.exchange.arithmetic import Floats, Scratch, arithmetic
from anabranch.exchange.reduction import other_terms
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import Letter
from anabranch.period.peers import GossipRule

FIRST = 1 << 40
"""Letters are counted from here, so that none has an exchange's number."""

_MOST_WEIGHT = 1e20
_MOST_STEPS = 1 << 53
_MOST_ON_ITS_WAY = 0.5  # of a model, by pairs: in letters, and again in answers
_LEAST_PROPOSED = 0.01  # of a model, to one neighbour


@dataclass(slots=True)
class _Written:
    """A letter to one neighbour, until it has come, or has been answered."""

    number: int
    steps: int
    shares: Sequence[float]  # of its chunks
    model: Floats | None  # as it was; None once it need not be sent again
    chunks: set[int] = field(default_factory=set)  # that were not taken back, nor answered


@dataclass(slots=True)
class _Coming:
    """What has come of a neighbour's latest letter."""

    number: int = FIRST - 1
    chunks: set[int] = field(default_factory=set)


class Letters:
    """One site's letters, and what has come of others' since it used them last.

    It is one class since what is sent, what has come and the model are one sum, which is kept.

    Memory beside the model: what has come, as large as the model; and a copy of it for each time it
    was sent and has not come everywhere yet.

    Args:
        site: this site.
        model: shape (elements,); ``use`` changes it.
        bounds: where each of its chunks begins and ends, the same at every site.
        wire: how it travels.
        weight: of this site's model at the beginning, > 0; by push-sum alone.
        rule: what is made of letters.
        counts: what part of a letter is used, in [0, 1], by how many steps its model is behind this
            site's.

    Attributes:
        steps: that this site's model has made; its owner counts them.
        weights: of the model's chunks, shape (chunks,); 1 but by push-sum.
        late: neighbours from which nothing has come for too long: what is on its way to them does
            not keep others from moving the model.
    """

    def __init__(
        self,
        site: int,
        model: Floats,
        bounds: Sequence[tuple[int, int]],
        wire: Wire = Wire.FLOAT32,
        weight: float = 1.0,
        rule: GossipRule = "pairs",
        counts: Callable[[int], float] = lambda behind: 1.0,
    ) -> None:
        self.steps = 0
        self.late: Collection[int] = ()
        self._site = site
        self._model = model
        self._bounds = bounds
        self._terms = Terms(Op.LETTER, wire, len(model)).code
        self._arithmetic = arithmetic(Op.LETTER, wire)
        self._scratch = Scratch()
        self._rule = rule
        self._counts = counts
        self.weights = np.full(len(bounds), weight if rule == "push-sum" else 1.0)
        self._come: Floats = np.zeros_like(model)
        self._come_weights = np.zeros(len(bounds))
        self._unused = np.zeros(len(bounds))  # weights of old letters that fall to this model
        self._changed: set[int] = set()  # chunks of which something has come
        self._written: dict[int, _Written] = {}  # by neighbour
        self._numbers: dict[int, int] = {}  # of the latest letter to each
        self._coming: dict[int, _Coming] = {}  # by neighbour
        self._answers: dict[tuple[int, int], dict[int, Send]] = {}  # by neighbour and letter
        self._gone: set[int] = set()  # neighbours whose letters are refused

    # --- what is sent

    @property
    def awaited(self) -> Collection[int]:
        """The neighbours to which a letter is on its way: they are sent no other one."""
        return self._written.keys()

    @property
    def owes(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self._answers)

    @property
    def copies(self) -> int:
        """How many copies of the model are kept for letters that are on their way."""
        held = (each.model for each in self._written.values() if each.model is not None)
        return len({id(model) for model in held})

    def write(self, neighbours: Collection[int]) -> list[Send]:
        """Send the model as it is now, to neighbours to which no letter is on its way.

        By pairs, while as much as may be is on its way, nothing is sent.
        """
        if not neighbours:
            return []
        part = 1.0 / (len(neighbours) + 1)
        if self._rule == "pairs":
            part = min(part, self._left_to_propose() / len(neighbours))
            if part < _LEAST_PROPOSED:
                return []
        shares = [part if self._rule == "pairs" else 1.0] * len(self._bounds)
        if self._rule == "push-sum":
            self.weights *= part
            shares = self.weights.tolist()
        model, every = self._model.copy(), range(len(self._bounds))
        sends: list[Send] = []
        for neighbour in sorted(neighbours):
            assert neighbour not in self._written
            number = self._numbers[neighbour] = self._numbers.get(neighbour, FIRST - 1) + 1
            written = _Written(number, self.steps, shares, model, {*every})
            self._written[neighbour] = written
            sends += self._sends(neighbour, written)
        return sends

    def _left_to_propose(self) -> float:
        proposed = (max(each.shares) for to, each in self._written.items() if to not in self.late)
        return _MOST_ON_ITS_WAY - sum(proposed)

    def again(self, neighbour: int) -> list[Send]:
        """Send what is on its way to a neighbour once more: its connection has broken."""
        sends: list[Send] = []
        written = self._written.get(neighbour)
        if written is not None and written.model is None:
            del self._written[neighbour]  # what was on its way is lost
        elif written is not None:
            sends = self._sends(neighbour, written)
        for (to, _), answers in self._answers.items():
            if to == neighbour:
                sends += [Send(each.message, each.payload) for each in answers.values()]
        return sends

    def _sends(self, neighbour: int, written: _Written) -> list[Send]:
        if written.model is None:
            return []
        sends = []
        for chunk in sorted(written.chunks):
            begin, end = self._bounds[chunk]
            message = Letter(
                written.number,
                0,
                chunk,
                (self._site, neighbour),
                self._terms,
                weight=written.shares[chunk],
                steps=written.steps,
            )
            sends.append(Send(message, self._arithmetic.encode(written.model[begin:end])))
        return sends

    def to_confirm(self, neighbour: int) -> list[tuple[int, bool]]:
        """Return what has come from a neighbour last: the number, and whether it is an answer."""
        found: list[tuple[int, bool]] = []
        coming = self._coming.get(neighbour)
        is_whole = coming is not None and len(coming.chunks) == len(self._bounds)
        if coming is not None and is_whole and self._rule != "pairs":
            found.append((coming.number, False))
        if self._rule == "pairs" and neighbour in self._numbers and neighbour not in self._written:
            found.append((self._numbers[neighbour], True))
        return found

    def cut_short(self, neighbour: int) -> int | None:
        """Return the number of a letter of which only part was sent; see ``take_back``."""
        written = self._written.get(neighbour)
        is_short = written is not None and written.model is None
        return written.number if written is not None and is_short else None

    def settled(self, neighbour: int, number: int, is_answer: bool) -> bool:
        """Take note that a letter, or all of an answer, has come; return whether it was news."""
        if is_answer:
            return self._answers.pop((neighbour, number), None) is not None
        written = self._written.get(neighbour)
        if written is None or written.number != number:
            return False  # it was sent twice, and has come twice
        del self._written[neighbour]
        return True

    @property
    def oldest(self) -> int | None:
        """The neighbour whose letter has been on its way for the most steps, of those kept here."""
        kept = [(each.steps, to) for to, each in self._written.items() if each.model is not None]
        return min(kept)[1] if kept else None

    def take_back(self, neighbour: int, chunks: Collection[int]) -> list[Action]:
        """Keep a letter no longer; use chunks of it here that were not sent, and never will be.

        Args:
            neighbour: its receiver.
            chunks: which, by index.

        Returns:
            What the neighbour is to hear.
        """
        written = self._written[neighbour]
        assert written.model is not None
        for chunk in sorted(written.chunks.intersection(chunks)):
            if self._rule == "push-sum":
                begin, end = self._bounds[chunk]
                self._add(chunk, written.model[begin:end], written.shares[chunk])
        is_cut_short = bool(written.chunks.intersection(chunks))
        written.chunks.difference_update(chunks)
        written.model = None
        if not written.chunks:
            del self._written[neighbour]
            # By pairs, what was sent of it may have been answered.
            return [LetterArrived(neighbour, written.number, True)] if self._rule == "pairs" else []
        if is_cut_short and self._rule != "pairs":
            return [LetterTruncated(neighbour, written.number)]
        return []

    def _add(self, chunk: int, values: Floats | None, weight: float) -> None:
        if values is not None and weight:
            begin, end = self._bounds[chunk]
            self._come[begin:end] += values * np.float32(weight)
        self._come_weights[chunk] += weight
        self._changed.add(chunk)

    # --- what comes

    def receive(self, message: Letter, payload_bytes: int) -> Receipt:
        """Return where a chunk of a letter or an answer goes; nowhere, if it has come before.

        Raises:
            MalformedMessage, OutOfPlaceMessage: it cannot be of a letter to this site.
        """
        if message.terms != self._terms:
            raise other_terms(message)
        sender = message.path[0]
        if len(message.path) != 2 or message.version or message.exchange < FIRST:
            raise OutOfPlaceMessage(f"letter {message.exchange} of site {sender}, out of place")
        if not 0 <= message.chunk < len(self._bounds):
            raise OutOfPlaceMessage(
                f"chunk {message.chunk} of a letter, where models have {len(self._bounds)}"
            )
        begin, end = self._bounds[message.chunk]
        if payload_bytes != (end - begin) * self._arithmetic.item_bytes:
            raise OutOfPlaceMessage(f"chunk {message.chunk} of a letter has {payload_bytes} bytes")
        most = _MOST_WEIGHT if self._rule == "push-sum" else 1.0
        least = 0.0 if message.is_answer else math.ulp(0.0)
        if not (least <= message.weight <= most and 0 <= message.steps <= _MOST_STEPS):
            raise MalformedMessage(f"a letter of weight {message.weight} after {message.steps}")
        if sender in self._gone:
            return Receipt(message, owner=self)
        if message.is_answer:
            self._check_answer(message)
        if not self._is_news(message) or not self._arithmetic.has_numbers:
            return Receipt(message, owner=self)
        apart = self._scratch.take(-(-payload_bytes // 4))
        target = apart.data.cast("B")[:payload_bytes]
        return Receipt(message, target=target, into=apart, owner=self)

    def _check_answer(self, message: Letter) -> None:
        latest = self._numbers.get(message.path[0], FIRST - 1)
        if self._rule != "pairs" or message.exchange > latest:
            raise OutOfPlaceMessage(
                f"an answer to letter {message.exchange} to site {message.path[0]}, which is none"
            )

    def _is_news(self, message: Letter) -> bool:
        """Return whether a chunk has not come before, and may still be used."""
        sender = message.path[0]
        if message.is_answer:
            written = self._written.get(sender)
            is_awaited = written is not None and written.number == message.exchange
            return is_awaited and written is not None and message.chunk in written.chunks
        coming = self._coming.setdefault(sender, _Coming())
        if message.exchange == coming.number:
            return message.chunk not in coming.chunks
        return message.exchange > coming.number

    def received(self, receipt: Receipt) -> list[Action]:
        """Take in a chunk all of which is there; say when its letter, or its answer, is."""
        message = receipt.message
        assert isinstance(message, Letter)
        if message.path[0] in self._gone:
            if isinstance(receipt.into, np.ndarray):
                self._scratch.give(receipt.into)
            return []
        values: Floats | None = None
        if receipt.target is not None:
            values = self._arithmetic.values(receipt.target)
        take = self._take_answer if message.is_answer else self._take_letter
        actions = take(message, values, self._is_news(message))
        if isinstance(receipt.into, np.ndarray):
            self._scratch.give(receipt.into)
        return actions

    def _take_letter(self, message: Letter, values: Floats | None, is_news: bool) -> list[Action]:
        sender, chunk = message.path[0], message.chunk
        coming = self._coming[sender]
        if message.exchange > coming.number:
            # Its sender has let go of the one before: who confirms nothing does not fill memory.
            self._answers.pop((sender, coming.number), None)
            coming.number, coming.chunks = message.exchange, set()
        if is_news:
            coming.chunks.add(chunk)
            weight = message.weight * self._counts(max(0, self.steps - message.steps))
            if self._rule == "push-sum":
                self._unused[chunk] += message.weight - weight
            if self._rule == "pairs":
                return self._meet(message, values, weight)
            self._add(chunk, values, weight)
        if len(coming.chunks) < len(self._bounds) and message.exchange == coming.number:
            return []
        return [LetterArrived(sender, message.exchange, False)]

    def _meet(self, message: Letter, values: Floats | None, weight: float) -> list[Action]:
        """Move towards a neighbour's chunk by pairs, and answer by how far."""
        sender, chunk = message.path[0], message.chunk
        begin, end = self._bounds[chunk]
        weight = min(weight, max(0.0, _MOST_ON_ITS_WAY - self._taken(chunk)))
        payload = self._arithmetic.encode(self._model[begin:end])
        if values is not None:
            move = values - self._model[begin:end]
            move *= np.float32(weight)
            payload = self._arithmetic.encode(move)
            self._come[begin:end] += self._arithmetic.values(payload)  # as the neighbour gets it
            self._changed.add(chunk)
        answer = Letter(
            message.exchange,
            0,
            chunk,
            (self._site, sender),
            self._terms,
            weight=weight,
            steps=self.steps,
            is_answer=True,
        )
        self._answers.setdefault((sender, message.exchange), {})[chunk] = Send(answer, payload)
        return [Send(answer, payload)]

    def _taken(self, chunk: int) -> float:
        """Return what part of a chunk is moved by answers that have not come yet."""
        taken = 0.0
        for (to, _), answer in self._answers.items():
            if chunk in answer and to not in self.late:
                message = answer[chunk].message
                assert isinstance(message, Letter)
                taken += message.weight
        return taken

    def _take_answer(self, message: Letter, values: Floats | None, is_news: bool) -> list[Action]:
        sender, chunk = message.path[0], message.chunk
        here: list[Action] = [LetterArrived(sender, message.exchange, True)]
        written = self._written.get(sender)
        if written is None or written.number != message.exchange:
            return here  # it is settled, or was let go
        if is_news:
            begin, end = self._bounds[chunk]
            if values is not None:
                self._come[begin:end] -= values
                self._changed.add(chunk)
            written.chunks.discard(chunk)
        if written.chunks:
            return []
        del self._written[sender]
        return here

    def forget(self, neighbour: int) -> None:
        """Take nothing from a neighbour any more, and await nothing: it is gone."""
        self._gone.add(neighbour)
        self._coming.pop(neighbour, None)
        self._written.pop(neighbour, None)
        self._numbers.pop(neighbour, None)
        self._answers = {key: each for key, each in self._answers.items() if key[0] != neighbour}

    def use(self) -> bool:
        """Make the model what it and all that has come make together; return whether any had."""
        for chunk in sorted(self._changed):
            begin, end = self._bounds[chunk]
            block, come = self._model[begin:end], self._come[begin:end]
            own, weight = self.weights[chunk], self._come_weights[chunk]
            if self._rule != "pairs":
                block *= np.float32(own / (own + weight))
                come *= np.float32(1.0 / (own + weight))
            block += come
            come[:] = 0.0
        if self._rule == "push-sum":
            self.weights += self._come_weights
            self.weights += self._unused
        self._come_weights[:] = 0.0
        self._unused[:] = 0.0
        has_changed = bool(self._changed)
        self._changed.clear()
        return has_changed

    # --- the mean of all

    def weighted(self) -> Floats:
        """Return the model, each chunk times its weight, shape (elements,)."""
        found = np.empty_like(self._model)
        for (begin, end), weight in zip(self._bounds, self.weights, strict=True):
            np.multiply(self._model[begin:end], np.float32(weight), out=found[begin:end])
        return found

    def agree(
        self,
        mean: Floats,
        weights: Mapping[int, npt.NDArray[np.float64]],
        parts: Sequence[tuple[int, int, Sequence[int]]],
    ) -> Floats:
        """Make the model the weighted mean of sites' models; return it.

        Args:
            mean: of what their ``weighted`` returned, shape (elements,).
            weights: of each site's chunks, shape (chunks,), by site.
            parts: which sites' are in which elements: from, to, and whose; together all elements.
        """
        for start, stop, sites in parts:
            of_chunks = np.mean([weights[site] for site in sites], axis=0)
            for chunk, (begin, end) in enumerate(self._bounds):
                first, last = max(begin, start), min(end, stop)
                if first < last:
                    weight = self.weights[chunk] = of_chunks[chunk]
                    np.divide(mean[first:last], np.float32(weight), out=self._model[first:last])
        return self._model
