"""Comm hooks: how DDP's gradients travel over a group, exact or compressed.

    model.register_comm_hook(Mean(wire="bfloat16"), hook)

The state selects the compression: :class:`Mean`, :class:`Int8` or :class:`TopK`; or
:class:`InOrder`, for one of torch's hooks. All ranks get the same bits, under any compression.
``Int8`` and ``TopK`` keep the exact unsent remainder at the site, and add it to the next step's
gradient (error feedback).

Functions of plain tensors do the arithmetic. Exchanges begin in the order of DDP's calls.
"""

# Annotations are values here: DDP compares a hook's with types.
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from anabranch.exchange.arithmetic import MOST_INTEGER
from anabranch.exchange.reduction import weight_of
from anabranch.torch._works import Begun, Work, together, used_here
from anabranch.torch.backend import backend_of

__all__ = ["InOrder", "Int8", "Mean", "TopK", "hook"]

_LEAST_LEVELS = 3  # on either side of zero: with fewer, most elements round to zero


class _Scaler(Protocol):
    def get_scale(self) -> float:
        """Return the factor of the loss."""


class State(Protocol):
    """The compression of a bucket, and its exchange."""

    def start(self, bucket: Any) -> Any:
        """Begin the exchange; return a future of the bucket's new tensor."""


def hook(
    state: State,
    bucket: dist.GradBucket,
) -> torch.futures.Future[torch.Tensor]:
    """Exchange a bucket as its state says: for ``DistributedDataParallel.register_comm_hook``.

    DDP's ``backward`` raises every error as a RuntimeError, also an immediate one.

    Args:
        state: a :class:`Mean`, :class:`Int8`, :class:`TopK` or :class:`InOrder`.
        bucket: of gradients.
    """
    try:
        buffer = bucket.buffer()
        if buffer.is_complex():
            raise ValueError(f"gradients are {_name(buffer.dtype)}; hooks are for real ones")
        if not buffer.numel():  # parameters without elements, at every rank
            return _known(buffer)
        future: Future[torch.Tensor] = state.start(bucket)
    except Exception as error:  # an error raised here would leave DDP's reducer unusable
        work = Work("comm hook")
        work.fail(error)
        future = work.get_future()
    return future


def _known(tensor: torch.Tensor) -> Future[torch.Tensor]:
    known: Future[torch.Tensor] = Future()
    known.set_result(tensor)
    return known


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Mean:
    """The mean of the gradients, or with weights the weighted mean.

    It is as exact as an all-reduce: float32 sums in the order of the plan's trees. With ``wire``,
    each sum is rounded to that type once a hop, and no residual keeps the rounding errors.
    Gradients are float32, float16 or bfloat16.

    Args:
        group: a process group of the backend anabranch; the default one if not given.
        wire: the type in which elements travel; their own if not given.
        weight: of this rank's gradients, > 0, in the sum of weight times gradient over the sum of
            weights. It is an attribute, and may be set before each backward pass. For unequal
            batches, set it to the number of the batch's samples.

    Raises:
        ValueError: ``wire`` or ``weight`` is invalid, or the group is of another backend; says
            which.
    """

    def __init__(
        self,
        group: Any = None,
        wire: Literal["bfloat16", "float16"] | None = None,
        weight: float = 1.0,
    ) -> None:
        if wire not in (None, "bfloat16", "float16"):
            raise ValueError(f"wire is {wire!r}, must be None, 'bfloat16' or 'float16'")
        self._group = backend_of(group)
        self._wire = wire
        self.weight = weight

    @property
    def weight(self) -> float:
        """The weight of this rank's gradients; setting an invalid one raises a ValueError."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        # Checked here: an error in the exchange would come after the other ranks have begun it.
        self._weight = weight_of(float(weight))

    def start(self, bucket: Any) -> Any:
        """See :class:`State`."""
        group, wire, weight = self._group.group, self._wire, self.weight

        def exchange(staged: list[torch.Tensor]) -> Begun:
            handle = group.all_reduce(staged, wire=wire, weight=weight, async_op=True)
            return handle, _nothing_more

        work = self._group.exchange("mean of gradients", [bucket.buffer()], exchange)
        return work.get_future().then(_only)


class Int8:
    """The mean of gradients in one byte an element, with error feedback.

    A first exchange finds the largest absolute value of each block over all sites. Let n be
    ``127 // sites``. Each site divides that value by n, which is the size of a step. It rounds
    gradient plus residual to an integer of at most n steps, either side of zero. The sums of these
    integers on the way are exact, since none leaves int8. So the result does not depend on the
    plan's trees. The sent part and the new residual add up, bit for bit, to the float32 sum of
    gradient and old residual. A block with an infinity or NaN at any site becomes NaN at all sites,
    and leaves residuals unchanged.

    Each bucket waits for the first exchange, one round trip, before its second begins. Residuals
    take a float32 for each parameter; a checkpoint of this rank holds ``residuals.state_dict``.

    Args:
        group: a process group of the backend anabranch; the default one if not given.
        block_elements: the elements of a block, which share one step size; that costs 4 bytes.
        scaler: the ``torch.amp.GradScaler`` that scales the loss, if one does. Its scale changes,
            so residuals are kept without it. If it skips a step, the residuals that finite blocks
            have sent are lost.

    Raises:
        ValueError: there are more than 42 sites, which leaves fewer than 3 steps. Or
            ``block_elements`` is invalid, or the group is of another backend.

    Attributes:
        residuals: this rank's residuals.
    """

    def __init__(
        self, group: Any = None, block_elements: int = 4096, scaler: _Scaler | None = None
    ) -> None:
        if not isinstance(block_elements, int) or block_elements < 1:
            raise ValueError(f"block_elements is {block_elements!r}, must be an integer from 1 on")
        self._group = backend_of(group)
        self._levels = levels(self._group.size())
        self._block = block_elements
        self._scaler = scaler
        self.residuals = Residuals()

    def start(self, bucket: Any) -> Any:
        """See :class:`State`."""
        group, sites = self._group.group, self._group.size()
        buffer, scale = bucket.buffer(), _scale(self._scaler)
        kept = self.residuals.of(bucket.parameters())
        residual = kept * scale
        values = buffer.float() + residual
        largest = largest_by_block(values, self._block)

        def agree(staged: list[torch.Tensor]) -> Begun:
            return group.all_reduce(staged, op="max", async_op=True), _nothing_more

        def add_up(staged: list[torch.Tensor]) -> Begun:
            handle = group.all_reduce(staged, op="sum", wire="int8", async_op=True)
            return handle, _nothing_more

        def finish(future: Any) -> torch.Tensor:
            used_here(largest)
            total = _only(future)
            mean = dequantised(total, largest, self._levels, self._block) / sites
            return _into(buffer, mean)

        self._group.exchange("largest gradients", [largest], agree).wait()
        integers, left = quantised(values, residual, largest, self._levels, self._block)
        kept.copy_(left / scale)
        work = self._group.exchange("sum of quantised gradients", [integers], add_up)
        return work.get_future().then(finish)


class TopK:
    """The mean of each site's largest gradients, with error feedback.

    Of gradient plus residual, each site sends the elements of the largest absolute values, in
    float32. The rest is the new residual, so nothing is rounded. Sites add the elements in the
    order of ranks, under any plan. NaN counts as the largest value, and is sent. If a bucket has an
    infinity or NaN at any site, its residuals stay unchanged at all sites.

    Each site receives all others' elements: ``8 * share * (sites - 1)`` bytes an element of the
    model. Residuals take a float32 for each parameter; a checkpoint of this rank holds
    ``residuals.state_dict``.

    Args:
        group: a process group of the backend anabranch; the default one if not given.
        share: the sent share of each bucket's elements, in (0, 1]; at least one element is sent.
        scaler: the ``torch.amp.GradScaler`` that scales the loss, if one does. Its scale changes,
            so residuals are kept without it. If it skips a step, the residuals that finite buckets
            have sent are lost.

    Raises:
        ValueError: ``share`` is invalid, or the group is of another backend.

    Attributes:
        residuals: this rank's residuals.
    """

    def __init__(
        self, group: Any = None, share: float = 0.01, scaler: _Scaler | None = None
    ) -> None:
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share is {share!r}, must be in (0, 1]")
        self._group = backend_of(group)
        self._share = share
        self._scaler = scaler
        self.residuals = Residuals()

    def start(self, bucket: Any) -> Any:
        """See :class:`State`."""
        group, names, rank = self._group.group, self._group.membership.names, self._group.rank()
        buffer, scale = bucket.buffer(), _scale(self._scaler)
        residual = self.residuals.of(bucket.parameters())
        values = buffer.float() + residual * scale
        mine = selected(values, max(1, round(self._share * len(values))))
        letters = [mine if each == rank else torch.empty_like(mine) for each in range(len(names))]

        def from_site(name: str) -> Callable[[list[torch.Tensor]], Begun]:
            def exchange(staged: list[torch.Tensor]) -> Begun:
                return group.broadcast(staged, root=name, async_op=True), _nothing_more

            return exchange

        works = [
            self._group.exchange("largest gradients", [letter], from_site(name))
            for name, letter in zip(names, letters, strict=True)
        ]

        def finish(future: Any) -> torch.Tensor:
            used_here(values, mine)
            total = added_up(future.wait(), len(values))
            if bool(total.isfinite().all()):  # residuals would carry NaN into the next step
                values[_indices(mine)] = 0.0
                residual.copy_(values / scale)
            return _into(buffer, total / len(names))

        devices = [buffer.device] if buffer.is_cuda else []
        return together(works, devices).then(finish)


class InOrder:
    """A hook of torch that calls collectives in callbacks, such as PowerSGD's::

        state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
        model.register_comm_hook(InOrder(powerSGD_hook, state), hook)

    This waits for each collective of the hook. So ranks call them in the same order, for any number
    of buckets, but they do not overlap with the backward pass. Compression errors are the hook's;
    its all-reduces are exact, so all ranks compute the same bits from them.

    Args:
        call: torch's hook.
        state: torch's state for the hook, of the same process group.
        group: a process group of the backend anabranch; the default one if not given.

    Raises:
        ValueError: the group is of another backend.
    """

    def __init__(self, call: Callable[[Any, Any], Any], state: Any, group: Any = None):
        self._group = backend_of(group)
        self._call = call
        self._state = state

    def start(self, bucket: Any) -> Any:
        """See :class:`State`."""
        with self._group.waiting():
            return self._call(self._state, bucket)


class Residuals:
    """The unsent remainder of gradients: a float32 for each element of each parameter."""

    def __init__(self) -> None:
        self._by_bucket: dict[tuple[int, ...], torch.Tensor] = {}
        self._by_parameter: dict[int, torch.Tensor] = {}  # views of the buckets' tensors

    def of(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a bucket's flat residual, to change in place; zeros at first.

        DDP moves parameters to other buckets after its first backward pass; their residuals move
        with them.
        """
        key = tuple(map(id, parameters))
        found = self._by_bucket.get(key)
        if found is None:
            parts = [
                self._by_parameter.get(
                    id(each), each.new_zeros(each.numel(), dtype=torch.float32).detach()
                )
                for each in parameters
            ]
            found = torch.cat(parts)
            sizes = [each.numel() for each in parameters]
            self._by_parameter.update(zip(key, torch.split(found, sizes), strict=True))
            others = self._by_bucket.items()
            self._by_bucket = {old: flat for old, flat in others if not {*old} & {*key}}
            self._by_bucket[key] = found
        return found

    def state_dict(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Return the residuals by their parameters' names; each rank has its own.

        Args:
            model: the model of these gradients: ``ddp.module``.
        """
        return {
            name: self._by_parameter[id(each)].view_as(each).clone()
            for name, each in model.named_parameters()
            if id(each) in self._by_parameter
        }

    def load_state_dict(self, model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from the residuals that ``state_dict`` returned at this rank.

        Args:
            model: as for ``state_dict``; parameters that the state lacks have no residual.
            state: the result of ``state_dict``.

        Raises:
            ValueError: the state names a parameter that the model does not have, or has with
                another shape. The residuals are unchanged.
        """
        shapes = {name: each.shape for name, each in model.named_parameters()}
        for name, each in state.items():
            if shapes.get(name) != each.shape:
                raise ValueError(
                    f"the state has a residual of {name!r} with shape {tuple(each.shape)}, and "
                    "this model has no such parameter; load the state of the same model"
                )
        self._by_bucket.clear()
        self._by_parameter = {
            id(each): state[name].detach().to(each.device, torch.float32).flatten().clone()
            for name, each in model.named_parameters()
            if name in state
        }


def _scale(scaler: _Scaler | None) -> float:
    return 1.0 if scaler is None else scaler.get_scale()


def levels(sites: int) -> int:
    """Return the most steps on either side of zero that keep the sum of all sites in int8.

    Raises:
        ValueError: there are fewer than 3.

    >>> levels(2), levels(9), levels(42)
    (63, 14, 3)
    """
    found = MOST_INTEGER // sites
    if found < _LEAST_LEVELS:
        most = MOST_INTEGER // _LEAST_LEVELS
        raise ValueError(
            f"{sites} sites leave {found} of int8's {MOST_INTEGER} steps to each, and Int8 needs 3 "
            f"at least: it is for up to {most} sites; use Mean(wire='bfloat16') or TopK"
        )
    return found


def largest_by_block(values: torch.Tensor, block: int) -> torch.Tensor:
    """Return the largest absolute value of each block; NaN for a block that has one.

    Args:
        values: float32, shape (elements,).
        block: elements of each block; the last may have fewer.

    >>> largest_by_block(torch.tensor([1.0, -3.0, 2.0]), 2).tolist()
    [3.0, 2.0]
    """
    missing = -len(values) % block
    return torch.nn.functional.pad(values.abs(), (0, missing)).view(-1, block).amax(1)


def quantised(
    values: torch.Tensor, residual: torch.Tensor, largest: torch.Tensor, levels: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values as numbers of steps, and the new residual.

    Steps times their size, plus the new residual, are the values, bit for bit: the difference of
    two float32 within a factor of two of each other is exact.

    Args:
        values: gradient plus residual, shape (elements,).
        residual: the old residual, kept where the step size is not finite.
        largest: the largest absolute value of each block over all sites.
        levels: how many steps that value has.
        block: elements of each block.
    """
    step = _spread(largest / levels, block, len(values))
    is_finite = step.isfinite()
    integers = (values / step).round_().clamp_(-levels, levels)
    integers = torch.where(is_finite & (step > 0), integers, 0.0)
    return integers, torch.where(is_finite, values - integers * step, residual)


def dequantised(
    integers: torch.Tensor, largest: torch.Tensor, levels: int, block: int
) -> torch.Tensor:
    """Return the values of numbers of steps, or of their sums; arguments as for ``quantised``."""
    return integers * _spread(largest / levels, block, len(integers))


def _spread(by_block: torch.Tensor, block: int, elements: int) -> torch.Tensor:
    return by_block.repeat_interleave(block)[:elements]


def selected(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the elements of the largest absolute values, with their indices, as one tensor.

    Returns:
        Shape (2 * count,), float32: the bits of the indices as int32, then the elements.

    >>> found = selected(torch.tensor([1.0, -3.0, 2.0]), 2)
    >>> added_up([found, found], 3).tolist()
    [0.0, -6.0, 4.0]
    """
    indices = values.abs().topk(count, sorted=False).indices
    return torch.cat([indices.to(torch.int32).view(torch.float32), values[indices]])


def _indices(letter: torch.Tensor) -> torch.Tensor:
    return letter[: len(letter) // 2].view(torch.int32).long()


def added_up(letters: Iterable[torch.Tensor], elements: int) -> torch.Tensor:
    """Return the sum of the sites' results of ``selected``, added in the given order."""
    total = torch.zeros(0)
    for number, letter in enumerate(letters):
        if not number:
            total = letter.new_zeros(elements)
        total[_indices(letter)] += letter[len(letter) // 2 :]  # one site's indices never repeat
    return total


def _only(future: Any) -> torch.Tensor:
    """Return the only tensor of a future's list."""
    (tensor,) = future.value()
    found: torch.Tensor = tensor
    return found


def _into(buffer: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    buffer.copy_(result)
    return buffer


def _nothing_more() -> None:
    """Do nothing: the tensors hold the result already."""
