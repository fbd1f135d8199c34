"""Gossip at one site: it sends its model to neighbours in letters, and mixes theirs in. Pure.

A letter is the sender's model, in chunks. A site uses chunks between two of its steps, each as it
arrives; it does not wait for a whole letter. The *rule* says how a chunk is mixed in.

**Pairs.** A site with chunk y receives chunk x of a letter. It moves by ``a (x - y)``, and answers
with that difference. The sender subtracts the answer from its present model. So the sum of both
models is unchanged, and steps made meanwhile are kept: the mean over all sites is invariant, if
differences in flight are counted.

Late differences can make models overshoot, the more of them are in flight. So a site's letters in
flight propose at most half a model together, and its answers in flight move at most half of one.
(Averaging with a delay is stable while all moves within the delay add up to less than 1.57;
Olfati-Saber and Murray, IEEE TAC 2004.)

**Push-sum** (Kempe, Dobra and Gehrke, FOCS 2003). Each chunk of a model has a weight. A site that
sends letters to m neighbours keeps ``1 / (m + 1)`` of each chunk's weight, and gives each neighbour
as much. A receiver's chunk becomes the weighted mean of itself and the chunks that arrived; its
weight becomes the sum of theirs. Two sums over all sites and all letters in flight are invariant:
of the weights, and of the chunks times their weights.

**Plain.** A chunk becomes the mean of itself and the chunks that arrived, with equal weights.

**A letter to one neighbour** (``_outstanding``). There is at most one at a time::

    none --write--> in flight, with a copy of the model --all chunks answered, or taken--> none
                      |      ^
                      |      `-- again: its connection broke, so all of it is sent once more
                      |
                      `take_back-> in flight, without a copy --answered, taken, or again--> none

- Pairs: the answers settle it. The receiver keeps its answers until the sender confirms them.
- Push-sum and plain: the receiver's confirmation (``LetterTaken``) settles it.
- ``take_back`` bounds memory. The lane withdraws the chunks that it has not sent, and push-sum adds
  them to this site's model again. Chunks that were sent may arrive yet; if their connection breaks,
  they are lost, and only then does the mean move. In push-sum and plain the receiver is told of the
  cut (``LetterTruncated``), and confirms.

Chunks arrive in any order. Letters to one neighbour have rising numbers: a chunk of an earlier
letter, or one that arrived before, is ignored. So each chunk counts once, however often it is sent.

**Age.** A merge rule may reduce the weight of a letter, by the number of steps that its model is
behind this site's. In push-sum the weight that is not used falls to this site's own model, so that
the sum of weights is unchanged.

**What must never happen.** A chunk is used twice. Weight disappears, except with a broken
connection after ``take_back``. A model moves further than the bounds above while differences are in
flight. An answer is computed from other values than the receiver moved by: ``_answer_chunk``
encodes the difference first, and moves by the decoded one.
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
"""The number of a site's first letter to a neighbour. No exchange has so high a number."""

_MOST_WEIGHT = 1e20
_MOST_STEPS = 1 << 53
_MOST_IN_FLIGHT = 0.5  # of a model, in pairs: by letters in flight, and again by answers
_LEAST_PROPOSED = 0.01  # of a model, to one neighbour; a smaller move is not worth a letter


@dataclass(slots=True)
class _Outstanding:
    """A letter in flight to one neighbour, until it is confirmed or answered."""

    number: int
    steps: int  # of the model, when the letter was made
    shares: Sequence[float]  # the weight of each chunk
    model: Floats | None  # a copy of the model; None after ``take_back``
    chunks: set[int] = field(default_factory=set)  # neither taken back nor answered


@dataclass(slots=True)
class _Incoming:
    """The chunks that have arrived of a neighbour's latest letter."""

    number: int = FIRST - 1
    chunks: set[int] = field(default_factory=set)


class Letters:
    """One site's letters in flight, and the moves that have arrived since the last ``use``.

    It is one class since the rules keep one sum invariant: of the model, the letters in flight,
    and the moves that have arrived.

    Memory beside the model: one more model for the moves that have arrived; and a copy of the model
    for each ``write`` of which a letter is still in flight.

    Args:
        site: this site's index.
        model: shape (elements,); ``use`` changes it.
        bounds: the first element and the end of each chunk, the same at every site.
        wire: the format of elements on the wire.
        weight: the initial weight of this site's model, > 0; only in push-sum.
        rule: how letters are mixed in; see the module.
        counts: returns the part of a letter to use, in [0, 1], given how many steps its model is
            behind this site's.

    Attributes:
        steps: the steps of this site's model; the owner counts them.
        weights: the weights of the model's chunks, shape (chunks,); 1 except in push-sum.
        late: neighbours that have been silent for too long; set by the owner. Letters and answers
            in flight to them do not count towards the bounds of pairs.
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
        # Moves (pairs), or chunks times their weights, that have arrived since the last `use`.
        self._arrived: Floats = np.zeros_like(model)
        self._arrived_weights = np.zeros(len(bounds))
        self._unused = np.zeros(len(bounds))  # weights of old letters that fall to this model
        self._changed: set[int] = set()  # chunks with arrived moves
        self._outstanding: dict[int, _Outstanding] = {}  # by neighbour
        self._numbers: dict[int, int] = {}  # of the latest letter to each neighbour
        self._incoming: dict[int, _Incoming] = {}  # by neighbour
        # Answers that are not confirmed yet, by (neighbour, letter), then by chunk.
        self._answers: dict[tuple[int, int], dict[int, Send]] = {}
        self._gone: set[int] = set()  # lost neighbours, whose data is ignored

    # --- sending

    @property
    def awaited(self) -> Collection[int]:
        """The neighbours with a letter in flight. They get no other one before it is settled."""
        return self._outstanding.keys()

    @property
    def owes(self) -> bool:
        """Whether an answer of this site is not confirmed yet."""
        return bool(self._answers)

    @property
    def copies(self) -> int:
        """The number of copies of the model that are kept for letters in flight."""
        held = (each.model for each in self._outstanding.values() if each.model is not None)
        return len({id(model) for model in held})

    def write(self, neighbours: Collection[int]) -> list[Send]:
        """Send the model as it is now to neighbours without a letter in flight.

        In pairs, returns no messages while letters in flight propose as much as they may.
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
            assert neighbour not in self._outstanding
            number = self._numbers[neighbour] = self._numbers.get(neighbour, FIRST - 1) + 1
            outstanding = _Outstanding(number, self.steps, shares, model, {*every})
            self._outstanding[neighbour] = outstanding
            sends += self._sends(neighbour, outstanding)
        return sends

    def _left_to_propose(self) -> float:
        proposed = (
            max(each.shares) for to, each in self._outstanding.items() if to not in self.late
        )
        return _MOST_IN_FLIGHT - sum(proposed)

    def again(self, neighbour: int) -> list[Send]:
        """Send the letter and the answers in flight to a neighbour again: its connection broke."""
        sends: list[Send] = []
        outstanding = self._outstanding.get(neighbour)
        if outstanding is not None and outstanding.model is None:
            del self._outstanding[neighbour]  # without a copy it cannot be sent again
        elif outstanding is not None:
            sends = self._sends(neighbour, outstanding)
        for (to, _), answers in self._answers.items():
            if to == neighbour:
                sends += [Send(each.message, each.payload) for each in answers.values()]
        return sends

    def _sends(self, neighbour: int, outstanding: _Outstanding) -> list[Send]:
        if outstanding.model is None:
            return []
        sends = []
        for chunk in sorted(outstanding.chunks):
            begin, end = self._bounds[chunk]
            message = Letter(
                outstanding.number,
                0,
                chunk,
                (self._site, neighbour),
                self._terms,
                weight=outstanding.shares[chunk],
                steps=outstanding.steps,
            )
            sends.append(Send(message, self._arithmetic.encode(outstanding.model[begin:end])))
        return sends

    def to_confirm(self, neighbour: int) -> list[tuple[int, bool]]:
        """Return what to confirm to a neighbour once more: (letter's number, whether an answer).

        An earlier confirmation may have been lost with the connection.
        """
        found: list[tuple[int, bool]] = []
        incoming = self._incoming.get(neighbour)
        is_whole = incoming is not None and len(incoming.chunks) == len(self._bounds)
        if incoming is not None and is_whole and self._rule != "pairs":
            found.append((incoming.number, False))
        if (
            self._rule == "pairs"
            and neighbour in self._numbers
            and neighbour not in self._outstanding
        ):
            found.append((self._numbers[neighbour], True))
        return found

    def cut_short(self, neighbour: int) -> int | None:
        """Return the number of the letter to a neighbour if ``take_back`` has cut it; else None."""
        outstanding = self._outstanding.get(neighbour)
        is_short = outstanding is not None and outstanding.model is None
        return outstanding.number if outstanding is not None and is_short else None

    def settled(self, neighbour: int, number: int, is_answer: bool) -> bool:
        """Note that a neighbour has confirmed a letter or an answer; return whether it is news."""
        if is_answer:
            return self._answers.pop((neighbour, number), None) is not None
        outstanding = self._outstanding.get(neighbour)
        if outstanding is None or outstanding.number != number:
            return False  # a letter that was sent twice is confirmed twice
        del self._outstanding[neighbour]
        return True

    @property
    def oldest(self) -> int | None:
        """The neighbour whose letter has been in flight for the most steps, with a copy kept."""
        kept = [
            (each.steps, to) for to, each in self._outstanding.items() if each.model is not None
        ]
        return min(kept)[1] if kept else None

    def take_back(self, neighbour: int, chunks: Collection[int]) -> list[Action]:
        """Drop the copy of a letter in flight, and recover chunks that its lane has not sent.

        Args:
            neighbour: the letter's receiver.
            chunks: the chunks, by index, that the lane has withdrawn.

        Returns:
            What to tell the neighbour.
        """
        outstanding = self._outstanding[neighbour]
        assert outstanding.model is not None
        for chunk in sorted(outstanding.chunks.intersection(chunks)):
            if self._rule == "push-sum":
                begin, end = self._bounds[chunk]
                self._add(chunk, outstanding.model[begin:end], outstanding.shares[chunk])
        is_cut_short = bool(outstanding.chunks.intersection(chunks))
        outstanding.chunks.difference_update(chunks)
        outstanding.model = None
        if not outstanding.chunks:
            del self._outstanding[neighbour]
            # In pairs every chunk that was sent has been answered, so confirm the answers.
            return (
                [LetterArrived(neighbour, outstanding.number, True)]
                if self._rule == "pairs"
                else []
            )
        if is_cut_short and self._rule != "pairs":
            return [LetterTruncated(neighbour, outstanding.number)]
        return []

    def _add(self, chunk: int, values: Floats | None, weight: float) -> None:
        if values is not None and weight:
            begin, end = self._bounds[chunk]
            self._arrived[begin:end] += values * np.float32(weight)
        self._arrived_weights[chunk] += weight
        self._changed.add(chunk)

    # --- arriving

    def receive(self, message: Letter, payload_bytes: int) -> Receipt:
        """Return where a chunk of a letter or an answer goes; nowhere if it is a repetition.

        Raises:
            MalformedMessage, OutOfPlaceMessage: no letter to this site has such a chunk.
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
        if payload_bytes != self._arithmetic.wire.bytes_of(end - begin):
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
        """Return whether a chunk has not arrived before, and may still be used."""
        sender = message.path[0]
        if message.is_answer:
            outstanding = self._outstanding.get(sender)
            is_awaited = outstanding is not None and outstanding.number == message.exchange
            return is_awaited and outstanding is not None and message.chunk in outstanding.chunks
        incoming = self._incoming.setdefault(sender, _Incoming())
        if message.exchange == incoming.number:
            return message.chunk not in incoming.chunks
        return message.exchange > incoming.number

    def received(self, receipt: Receipt) -> list[Action]:
        """Take in a complete chunk; report its letter or answer if that is complete now."""
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
        incoming = self._incoming[sender]
        if message.exchange > incoming.number:
            # The sender has settled or dropped the letter before. Its answers are dropped too, or
            # a sender that never confirms would fill this site's memory.
            self._answers.pop((sender, incoming.number), None)
            incoming.number, incoming.chunks = message.exchange, set()
        if is_news:
            incoming.chunks.add(chunk)
            weight = message.weight * self._counts(max(0, self.steps - message.steps))
            if self._rule == "push-sum":
                self._unused[chunk] += message.weight - weight
            if self._rule == "pairs":
                return self._answer_chunk(message, values, weight)
            self._add(chunk, values, weight)
        if len(incoming.chunks) < len(self._bounds) and message.exchange == incoming.number:
            return []
        return [LetterArrived(sender, message.exchange, False)]

    def _answer_chunk(self, message: Letter, values: Floats | None, weight: float) -> list[Action]:
        """Move towards a neighbour's chunk, in pairs, and answer with the difference."""
        sender, chunk = message.path[0], message.chunk
        begin, end = self._bounds[chunk]
        weight = min(weight, max(0.0, _MOST_IN_FLIGHT - self._taken(chunk)))
        payload = self._arithmetic.encode(self._model[begin:end])
        if values is not None:
            move = values - self._model[begin:end]
            move *= np.float32(weight)
            payload = self._arithmetic.encode(move)
            # By the decoded difference, which is what the neighbour subtracts. Moving by the exact
            # one would shift the mean by the rounding.
            self._arrived[begin:end] += self._arithmetic.values(payload)
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
        """Return the part of a chunk that answers in flight move."""
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
        outstanding = self._outstanding.get(sender)
        if outstanding is None or outstanding.number != message.exchange:
            return here  # settled or dropped; confirm once more
        if is_news:
            begin, end = self._bounds[chunk]
            if values is not None:
                self._arrived[begin:end] -= values
                self._changed.add(chunk)
            outstanding.chunks.discard(chunk)
        if outstanding.chunks:
            return []
        del self._outstanding[sender]
        return here

    def forget(self, neighbour: int) -> None:
        """Forget a lost neighbour: ignore its data, and await none."""
        self._gone.add(neighbour)
        self._incoming.pop(neighbour, None)
        self._outstanding.pop(neighbour, None)
        self._numbers.pop(neighbour, None)
        self._answers = {key: each for key, each in self._answers.items() if key[0] != neighbour}

    def use(self) -> bool:
        """Mix everything that has arrived into the model; return whether anything had."""
        for chunk in sorted(self._changed):
            begin, end = self._bounds[chunk]
            block, arrived = self._model[begin:end], self._arrived[begin:end]
            own, weight = self.weights[chunk], self._arrived_weights[chunk]
            if self._rule != "pairs":
                block *= np.float32(own / (own + weight))
                arrived *= np.float32(1.0 / (own + weight))
            block += arrived
            arrived[:] = 0.0
        if self._rule == "push-sum":
            self.weights += self._arrived_weights
            self.weights += self._unused
        self._arrived_weights[:] = 0.0
        self._unused[:] = 0.0
        has_changed = bool(self._changed)
        self._changed.clear()
        return has_changed

    # --- the mean of all

    def weighted(self) -> Floats:
        """Return the model with each chunk multiplied by its weight, shape (elements,)."""
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
        """Set the model to the weighted mean of the sites' models; return it.

        Args:
            mean: the mean of the sites' ``weighted()``, shape (elements,).
            weights: the weights of each site's chunks, shape (chunks,), by site.
            parts: the sites that ``mean`` is of, by elements: (start, stop, sites). Together they
                cover all elements.
        """
        for start, stop, sites in parts:
            of_chunks = np.mean([weights[site] for site in sites], axis=0)
            for chunk, (begin, end) in enumerate(self._bounds):
                first, last = max(begin, start), min(end, stop)
                if first < last:
                    weight = self.weights[chunk] = of_chunks[chunk]
                    np.divide(mean[first:last], np.float32(weight), out=self._model[first:last])
        return self._model
