"""Averages of models that make local steps in between. Pure: NumPy, no network.

A site contributes its model. With an outer optimiser it contributes the model's change since the
last average: the *pseudo-gradient* (Reddi et al., ICLR 2021; DiLoCo, Douillard et al., 2023). The
outer optimiser makes one step with the mean of these, from the model after the last average.
Without momentum and with a learning rate of 1, that equals the plain mean, but for rounding.

Each operation is one NumPy call on float32, as in :mod:`anabranch.train.optimisers`: sites that get
the same mean come to the same model, bit for bit.

**Compression.** Changes may travel in blocks of few bits. A site keeps what rounding takes from its
sums (:class:`anabranch.exchange.compressed.Compressed`), and adds it to its next contribution:
error feedback. So nothing is lost for good. Each site keeps other parts.

**Delay.** A site may make local steps while an average is under way. Their changes are added to the
average's result. A site uses the result a stated number of steps after the average began (delayed
averaging; Streaming DiLoCo, Douillard et al., 2025). So the numbers do not depend on how long an
exchange took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.exchange.terms import Wire
from anabranch.train.checksum import checksum
from anabranch.train.optimisers import Sgd, Update
from anabranch.train.work import State

Floats = npt.NDArray[np.float32]


WireName = Literal["float32", "float16", "bfloat16", "int8", "int4", "int2", "top2"]
FORMATS: dict[str, Wire] = {
    "float32": Wire.FLOAT32,
    "float16": Wire.FLOAT16,
    "bfloat16": Wire.BFLOAT16,
    "int8": Wire.BLOCKS8,
    "int4": Wire.BLOCKS4,
    "int2": Wire.BLOCKS2,
    "top2": Wire.TOP2,
}
"""The formats of averages, by the names that users give."""


class Outer(Table, frozen=True, kw_only=True):
    """The outer optimiser: SGD on the mean of the changes of sites' models.

    Args:
        learning_rate: of its step; 1 goes all the way to the mean.
        momentum: in [0, 1).
        nesterov: whether it looks ahead along its momentum, as DiLoCo does.
    """

    learning_rate: Annotated[float, Meta(gt=0, le=1e9)] = 0.7
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    nesterov: bool = True

    def start(self, elements: int) -> Update:
        """Return a new update for this many elements."""
        nesterov = self.nesterov and self.momentum > 0
        return Sgd(self.learning_rate, self.momentum, nesterov).start(elements)


class Average(Table, frozen=True, kw_only=True):
    """How models are averaged, and how many local steps overlap an average.

    Args:
        outer: the outer optimiser; None takes the mean of the models.
        delay: the local steps that a site makes while an average is under way, before it waits for
            the result: the average's staleness. Their changes stay. 0 waits at once.
        fragments: the number of parts of the model that are averaged in turn, spread evenly over
            the period, as in Streaming DiLoCo (Douillard et al., 2025).
        wire: the format in which models or changes travel. ``int8``, ``int4`` and ``int2`` are
            blocks of 256 integers and their scale. ``top2`` has the 64 largest of each 4096
            elements, in two bits each and the places, as in SparseLoCo (Sarfi et al., 2025). These
            four carry changes; without an outer optimiser the mean change is applied as it is.
    """

    outer: Outer | None = None
    delay: Annotated[int, Meta(ge=0)] = 0
    fragments: Positive = 1
    wire: WireName = "float32"

    @property
    def compresses(self) -> bool:
        """Whether changes travel in blocks of few bits."""
        return FORMATS[self.wire].has_blocks

    @property
    def steps_by(self) -> Outer | None:
        """The outer optimiser in use."""
        if self.outer is None and self.compresses:
            return Outer(learning_rate=1.0, momentum=0.0, nesterov=False)
        return self.outer


SHARED_NUMBERS = 3  # contributed beside the model where sites share measurements


@dataclass(frozen=True, slots=True)
class Shared:
    """The sites' measurements: the same bits at every site.

    Args:
        spread: see :class:`anabranch.period.Averaged`.
        step_s, exchange_s: means over the sites, seconds.
    """

    spread: float
    step_s: float
    exchange_s: float


class Averaging:
    """A part of one site's model between averages.

    Memory beside the model: a copy for an outer optimiser, a copy for a delay, and the contribution
    where that is not the model itself. Compression takes two: what is kept, and what the average
    under way loses. Where sites share measurements, the contribution has three
    more numbers: the square of the model's movement, and two times.

    Args:
        model: one array or several, each of shape (its elements,), changed in place.
        average: how the model is averaged.
        remembers: whether ``moved`` is needed, which costs a copy of the model.
        shares: whether ``take`` returns the sites' measurements, which costs a copy of the model
            and one of the contribution.
    """

    def __init__(
        self,
        model: Sequence[Floats],
        average: Average,
        remembers: bool = False,
        shares: bool = False,
    ) -> None:
        self._shares = shares
        self._wire = average.wire
        self._model = [*model]
        self._ends = [*accumulate(map(len, self._model))]
        outer = average.steps_by
        self._outer = None if outer is None else outer.start(self._ends[-1])
        self._overlaps = average.delay > 0
        needs_last = self._outer is not None or remembers or shares
        # The model after the last average, before any local step.
        self._last: Floats | None = np.concatenate(self._model) if needs_last else None
        is_apart = self._outer is not None or self._overlaps or shares
        # The contribution, and the model's part of it. Without ``_last``, that part also keeps the
        # model after the last average.
        self._whole: Floats | None = None
        self._buffer: Floats | None = None
        if is_apart:
            numbers = np.zeros(SHARED_NUMBERS if shares else 0, np.float32)
            self._whole = np.concatenate([*self._model, numbers])
            self._buffer = self._whole[: self._ends[-1]]
        # What earlier averages have lost here, of a contribution of this weight, the largest so
        # far; and what the one under way loses.
        self._kept: Floats | None = None
        self.lost: Floats | None = None
        self._kept_weight = self._weight = 1.0
        if average.compresses:
            self._kept, self.lost = np.zeros((2, self._ends[-1]), np.float32)
        self._sent: Floats | None = None
        if self._overlaps:
            assert self._buffer is not None
            self._sent = np.empty_like(self._buffer)

    def moved(self) -> float:
        """Return the norm of the model's change since the last average, over its norm then."""
        assert self._last is not None
        return _ratio(_distance(self._model, self._cut(self._last)), _norm([self._last]))

    def remember(self) -> None:
        """Measure the model's movement from its present state on."""
        assert self._last is not None
        self._copy_to(self._last)

    def contribute(
        self, step_s: float = 0.0, exchange_s: float = 0.0, weight: float = 1.0
    ) -> list[Floats]:
        """Return the arrays to exchange; the caller replaces them by the mean, in place.

        Args:
            step_s, exchange_s: this site's seconds of a local step and of an exchange, to share.
            weight: of this contribution. A smaller weight than before adds as much less of what
                earlier averages have lost, and the rest is kept. Otherwise the losses of an average
                with large weights would swamp one with small weights.
        """
        self._weight = weight
        if self._shares:
            assert self._last is not None
            assert self._whole is not None
            square = _distance(self._model, self._cut(self._last)) ** 2
            self._whole[-SHARED_NUMBERS:] = square, step_s, exchange_s
        if self._outer is not None:
            assert self._last is not None
            assert self._buffer is not None
            apart = zip(self._model, self._cut(self._last), self._cut(self._buffer), strict=True)
            for model, last, out in apart:
                np.subtract(last, model, out=out)
            if self._kept is not None:
                assert self.lost is not None
                if weight > self._kept_weight:
                    self._kept *= np.float32(self._kept_weight / weight)
                    self._kept_weight = weight
                self._buffer += self._kept
                self.lost.fill(0.0)
        elif self._buffer is not None:
            self._copy_to(self._buffer)
        if self._sent is not None:
            self._copy_to(self._sent)
        return self._contributed

    def take(self) -> Shared | None:
        """Apply the mean, now in the contributed arrays.

        Returns:
            The sites' measurements, if they share them.
        """
        shared = self._shared()
        self._keep_lost()
        found = self._buffer
        if self._outer is not None:
            assert self._last is not None
            assert self._buffer is not None
            self._outer(self._last, self._buffer)
            found = self._last
        elif self._last is not None:
            if self._buffer is None:
                self._copy_to(self._last)
            else:
                self._last[:] = self._buffer
        if self._sent is not None:
            assert found is not None
            apart = zip(self._model, self._cut(self._sent), self._cut(found), strict=True)
            for model, sent, new in apart:
                model -= sent
                model += new
        elif found is not None:
            self._copy_from(found)
        return shared

    def take_mean_alone(self) -> None:
        """Change the model by the mean, as ``take`` does, without a step of the outer optimiser."""
        assert self._last is not None
        assert self._buffer is not None
        self._keep_lost()
        self._last -= self._buffer
        self._copy_from(self._last)

    def _keep_lost(self) -> None:
        if self._kept is None or self.lost is None or self._weight == self._kept_weight:
            self._kept, self.lost = self.lost, self._kept
            return
        part = np.float32(self._weight / self._kept_weight)
        self._kept *= 1 - part
        self.lost *= part
        self._kept += self.lost

    @property
    def base_checksum(self) -> int:
        """A checksum of the model that the outer optimiser's step starts from; 0 without one.

        Sites with different checksums never become alike under an outer optimiser. A plain mean
        makes sites alike.
        """
        if self._outer is None:
            return 0
        assert self._last is not None
        return checksum(self._last)

    @property
    def has_strayed(self) -> bool:
        """Whether this model's change since the last average differs from the mean change.

        Call it with an outer optimiser, when the contributed arrays hold the mean, and before any
        further local step.
        """
        assert self._last is not None
        assert self._buffer is not None
        own = self._last - np.concatenate(self._model)
        least = _STRAYED[self._wire] * _norm([own])
        if self._kept is not None:  # means are also of what sites have kept, which differs
            least += 2 * _norm([self._kept])
        return _norm([own - self._buffer]) > least

    def _shared(self) -> Shared | None:
        if not self._shares:
            return None
        assert self._last is not None
        assert self._buffer is not None
        assert self._whole is not None
        if self._outer is not None:
            move = _norm([self._buffer])
        else:
            move = _distance([self._buffer], [self._last])
        # The mean square of the distances from the mean is the mean square of the moves less the
        # square of the mean's move. So it takes no copy of a model.
        square, step_s, exchange_s = self._whole[-SHARED_NUMBERS:].tolist()
        spread = math.sqrt(max(0.0, square / move**2 - 1.0)) if move else 0.0
        return Shared(spread, step_s, exchange_s)

    def settle(self) -> None:
        """Set the model back to its state after the last average."""
        if self._last is not None:
            self._copy_from(self._last)
        elif self._buffer is not None:
            self._copy_from(self._buffer)

    def adopt(self, is_on_its_way: bool) -> None:
        """Discard local changes since the last average; call after a state was loaded.

        Args:
            is_on_its_way: whether an average is under way; the state has its result.
        """
        if self._last is not None or not is_on_its_way:
            self.settle()
        if self._sent is not None:
            self._copy_to(self._sent)
        if self._kept is not None and self.lost is not None:  # another site's, which has it still
            self._kept.fill(0.0)
            self.lost.fill(0.0)

    @property
    def agreed(self) -> list[Floats]:
        """The arrays that are equal at all sites once they have applied the same mean."""
        return self._contributed if self._last is None else [self._last]

    @property
    def _contributed(self) -> list[Floats]:
        return self._model if self._whole is None else [self._whole]

    def state_dict(self) -> State:
        """Return the state to continue from; an average under way must have its result.

        Nothing is copied.
        """
        state: State = {}
        if self._last is not None:
            state["last"] = self._last
        if self._outer is not None:
            state["outer"] = self._outer.state_dict()
        if self._sent is not None:
            state |= {"result": self._buffer, "sent": self._sent}
        if self._kept is not None:
            state |= {"kept": self._kept, "lost": self.lost}
            state["weights"] = np.array([self._kept_weight, self._weight])
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of an averaging of the same kind and size.

        Raises:
            ValueError: the state is of another kind or size.
        """
        mine = self.state_dict()
        if {*state} != {*mine}:
            raise ValueError(
                f"the state of an average has {sorted(state)}, this one {sorted(mine)}; give the "
                "same outer, delay, fragments and wire as where it was saved"
            )
        for name, here in mine.items():
            if name == "outer":
                continue
            if np.shape(state[name]) != here.shape:
                raise ValueError(
                    f"{name} of the state of an average has shape {np.shape(state[name])}, this "
                    f"one {here.shape}; give the same model"
                )
            here[:] = state[name]
        if self._kept is not None:
            self._kept_weight, self._weight = map(float, state["weights"])
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])

    def shared_state(self) -> State:
        """Return the state that is equal at all sites while no average is under way.

        Nothing is copied. Where this object keeps no copy of the model, the state contains the
        model itself: call before any step that follows the last average.
        """
        state = {name: each for name, each in self.state_dict().items() if name not in _OWN}
        if self._last is None and self._buffer is None:
            state["model"] = [*self._model]
        return state

    def load_shared_state(self, state: State) -> None:
        """Continue from another site's ``shared_state``, at the last average of all sites.

        Raises:
            ValueError: the state is of another kind or size.
        """
        state = dict(state)
        if (model := state.pop("model", None)) is not None:
            for mine, theirs in zip(self._model, model, strict=True):
                mine[:] = theirs
        own = self.state_dict()
        kept: State = {name: own[name] for name in _OWN if name in own}
        self.load_state_dict({**state, **kept})
        self.adopt(is_on_its_way=False)

    def _cut(self, flat: Floats) -> list[Floats]:
        """Return the parts of a flat array that belong to each array of the model."""
        starts = [0, *self._ends[:-1]]
        return [flat[begin:end] for begin, end in zip(starts, self._ends, strict=True)]

    def _copy_to(self, flat: Floats) -> None:
        for part, model in zip(self._cut(flat), self._model, strict=True):
            part[:] = model

    def _copy_from(self, flat: Floats) -> None:
        for part, model in zip(self._cut(flat), self._model, strict=True):
            model[:] = part


def slices(arrays: Sequence[Floats], begin: int, end: int) -> list[Floats]:
    """Return views of elements ``[begin, end)`` of a sequence of arrays.

    >>> slices([np.array([1, 2], np.float32), np.array([3, 4], np.float32)], 1, 3)
    [array([2.], dtype=float32), array([3.], dtype=float32)]
    """
    found, start = [], 0
    for array in arrays:
        part = array[max(0, begin - start) : max(0, end - start)]
        if len(part):
            found.append(part)
        start += len(array)
    return found


def bounds(elements: int, fragments: int) -> list[tuple[int, int]]:
    """Return each fragment's [begin, end); their lengths differ by at most one element.

    >>> bounds(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    return [(elements * i // fragments, elements * (i + 1) // fragments) for i in range(fragments)]


_BLOCK_ELEMENTS = 1 << 18
_OWN = "sent", "kept", "lost", "weights"  # what each site has for itself, of a state
# Part of a change; rounding on the way moves the mean less.
_STRAYED: dict[WireName, float] = {
    "float32": 0.05,
    "float16": 0.05,
    "bfloat16": 0.05,
    "int8": 0.1,
    "int4": 0.4,
    "int2": 0.95,
    "top2": 1.5,
}


def _distance(ones: Sequence[Floats], others: Sequence[Floats]) -> float:
    squares = 0.0
    for one, other in zip(ones, others, strict=True):
        for start in range(0, len(one), _BLOCK_ELEMENTS):
            stop = start + _BLOCK_ELEMENTS
            difference = one[start:stop] - other[start:stop]
            squares += float(np.dot(difference, difference))
    return float(squares**0.5)


def _norm(ones: Sequence[Floats]) -> float:
    return math.hypot(*(float(np.linalg.norm(one)) for one in ones))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else (float("inf") if part else 0.0)
