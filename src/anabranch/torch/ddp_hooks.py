"""Comm hooks: how DDP's gradients travel over a group, and what is lost of them on the way.

    model.register_comm_hook(Mean(wire="bfloat16"), hook)

The state says how: :class:`Mean`, :class:`Int8` or :class:`TopK`; or :class:`InOrder`, one of
torch's own hooks. All ranks get the same bits, whatever is lost. What ``Int8`` and ``TopK`` do not
send stays at the site, exactly, and is added to the next step's gradient (error feedback).

What is computed is in functions of plain tensors; exchanges are begun in the order of DDP's calls.
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

_LEAST_LEVELS = 3  # either sign: with fewer, most elements round to nothing


class _Scaler(Protocol):
    def get_scale(self) -> float:
        """Return what the loss is multiplied by."""


class State(Protocol):
    """How a bucket travels."""

    def start(self, bucket: Any) -> Any:
        """Begin; return a future of the tensor that the bucket shall hold."""


def hook(
    state: State,
    bucket: dist.GradBucket,
) -> torch.futures.Future[torch.Tensor]:
    """Make of a bucket what its state says: for ``DistributedDataParallel.register_comm_hook``.

    Whatever goes wrong, also at once, DDP's ``backward`` raises it as a RuntimeError.

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
    except Exception as error:  # raised here, it would leave DDP's reducer unusable
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

    Exact as an all-reduce is: float32 sums in the order of the plan's trees. With ``wire`` each sum
    is rounded to that type once a hop, and no residual is kept: what is lost is lost. Gradients are
    float32, float16 or bfloat16.

    Args:
        group: a process group of the backend anabranch; the default one if not given.
        wire: the type in which elements travel; their own if not given.
        weight: of this rank's gradients, > 0, in the sum of weight times gradient over the sum of
            weights. It is an attribute, and may be set before each backward pass: to the number of
            the batch's samples, say, where ranks have unequal batches.

    Raises:
        ValueError: another type or weight, or a group of another backend; says which.
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
        """Of this rank's gradients; setting one that cannot be raises a ValueError."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        # Here and not in the exchange, to which the others would have come.
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

    A first exchange finds the largest absolute value of each block over all sites. Each site then
    rounds gradient plus residual to integers of at most ``127 // sites`` steps, a step being that
    largest value over as many; the integers are added up exactly on the way, for no sum leaves
    int8. So the result does not depend on the plan's trees, and what a site sent and its new
    residual are together, bit for bit, the float32 sum of gradient and old residual. A block that
    has an infinity or NaN at any site becomes NaN at all, and leaves residuals as they were.

    Each bucket waits for the first exchange, one round trip, before its second begins. Residuals
    take a float32 for each parameter; a checkpoint of this rank holds ``residuals.state_dict``.

    Args:
        group: a process group of the backend anabranch; the default one if not given.
        block_elements: that have a step of their own, which costs 4 bytes.
        scaler: the ``torch.amp.GradScaler`` that scales the loss, if one does: its scale changes,
            and residuals are kept without it. A step that it skips loses what finite blocks have
            sent of their residuals.

    Raises:
        ValueError: there are so many sites that fewer than 3 steps are left (more than 42); or
            elements of a block that cannot be, or a group of another backend.

    Attributes:
        residuals: of this rank.
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

    Of gradient plus residual each site sends the elements of the largest absolute values, as they
    are, in float32; the rest is the new residual, so nothing is rounded. Sites' elements are added
    in the order of ranks, whatever the plan. NaN counts as the largest, and is sent; where a bucket
    has an infinity or NaN at any site, its residuals stay as they were at all.

    Each site receives all others' elements: ``8 * share * (sites - 1)`` bytes an element of the
    model.
    Residuals take a float32 for each parameter; a checkpoint of this rank holds
    ``residuals.state_dict``.

    Args:
        group: a process group of the backend anabranch; the default one if not given.
        share: of each bucket's elements, in (0, 1]; one element at least is sent.
        scaler: the ``torch.amp.GradScaler`` that scales the loss, if one does: its scale changes,
            and residuals are kept without it. A step that it skips loses what finite buckets have
            sent of their residuals.

    Raises:
        ValueError: a share that cannot be, or a group of another backend.

    Attributes:
        residuals: of this rank.
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
            if bool(total.isfinite().all()):  # else residuals would bring it again
                values[_indices(mine)] = 0.0
                residual.copy_(values / scale)
            return _into(buffer, total / len(names))

        devices = [buffer.device] if buffer.is_cuda else []
        return together(works, devices).then(finish)


class InOrder:
    """One of torch's hooks that call collectives in callbacks, such as PowerSGD's::

        state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
        model.register_comm_hook(InOrder(powerSGD_hook, state), hook)

    Each collective of the hook is waited for, so ranks call them in the same order, however many
    buckets there are; a bucket's do not overlap with the backward pass. What is lost is up to the
    hook; its all-reduces are exact, so all ranks compute the same bits from them.

    Args:
        call: torch's hook.
        state: torch's state for it, of the same process group.
        group: a process group of the backend anabranch; the default one if not given.

    Raises:
        ValueError: a group of another backend.
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
    """What has not been sent of gradients: a float32 for each element of each parameter."""

    def __init__(self) -> None:
        self._by_bucket: dict[tuple[int, ...], torch.Tensor] = {}
        self._by_parameter: dict[int, torch.Tensor] = {}  # each a view of a bucket's

    def of(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a bucket's, flat, to be changed in place; zeros at first.

        DDP deals parameters to other buckets after its first backward pass; their residuals move
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
            model: whose gradients these are: ``ddp.module``.
        """
        return {
            name: self._by_parameter[id(each)].view_as(each).clone()
            for name, each in model.named_parameters()
            if id(each) in self._by_parameter
        }

    def load_state_dict(self, model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from the residuals that ``state_dict`` returned, of this rank.

        Args:
            model: see there; its parameters that the state lacks have no residual.
            state: see there.

        Raises:
            ValueError: it names a parameter that the model has not got, or has of another shape;
                nothing has changed.
        """
        shapes = {name: each.shape for name, each in model.named_parameters()}
        for name, each in state.items():
            if shapes.get(name) != each.shape:
                raise ValueError(
                    f"a residual of {name!r} with shape {tuple(each.shape)}, which is no parameter "
                    "of this model; load the state of the same model"
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
    """Return how many steps either side of zero leave the sum of all sites in int8.

    Raises:
        ValueError: too few.

    >>> levels(2), levels(9), levels(42)
    (63, 14, 3)
    """
    found = MOST_INTEGER // sites
    if found < _LEAST_LEVELS:
        most = MOST_INTEGER // _LEAST_LEVELS
        raise ValueError(
            f"{sites} sites leave {found} of int8's {MOST_INTEGER} steps to each, and 3 are the "
            f"least: Int8 is for up to {most} sites; use Mean(wire='bfloat16') or TopK"
        )
    return found


def largest_by_block(values: torch.Tensor, block: int) -> torch.Tensor:
    """Return the largest absolute value of each block; NaN where one is.

    Args:
        values: float32, shape (elements,).
        block: elements of each, but for the last.

    >>> largest_by_block(torch.tensor([1.0, -3.0, 2.0]), 2).tolist()
    [3.0, 2.0]
    """
    missing = -len(values) % block
    return torch.nn.functional.pad(values.abs(), (0, missing)).view(-1, block).amax(1)


def quantised(
    values: torch.Tensor, residual: torch.Tensor, largest: torch.Tensor, levels: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values in steps, and the new residual.

    Steps times their size plus the new residual are the values, bit for bit: the difference of two
    float32 within a factor of two of each other is exact.

    Args:
        values: gradient plus residual, shape (elements,).
        residual: the old one, kept where steps are not finite.
        largest: of each block over all sites.
        levels: how many steps that is.
        block: elements of each.
    """
    step = _spread(largest / levels, block, len(values))
    is_finite = step.isfinite()
    integers = (values / step).round_().clamp_(-levels, levels)
    integers = torch.where(is_finite & (step > 0), integers, 0.0)
    return integers, torch.where(is_finite, values - integers * step, residual)


def dequantised(
    integers: torch.Tensor, largest: torch.Tensor, levels: int, block: int
) -> torch.Tensor:
    """Return the values of steps, or of sums of them; arguments as for ``quantised``."""
    return integers * _spread(largest / levels, block, len(integers))


def _spread(by_block: torch.Tensor, block: int, elements: int) -> torch.Tensor:
    return by_block.repeat_interleave(block)[:elements]


def selected(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the elements of the largest absolute values, as they travel.

    Returns:
        Shape (2 * count,), float32: the bits of their indices as int32, and the elements.

    >>> found = selected(torch.tensor([1.0, -3.0, 2.0]), 2)
    >>> added_up([found, found], 3).tolist()
    [0.0, -6.0, 4.0]
    """
    indices = values.abs().topk(count, sorted=False).indices
    return torch.cat([indices.to(torch.int32).view(torch.float32), values[indices]])


def _indices(letter: torch.Tensor) -> torch.Tensor:
    return letter[: len(letter) // 2].view(torch.int32).long()


def added_up(letters: Iterable[torch.Tensor], elements: int) -> torch.Tensor:
    """Return the sum of what ``selected`` made at each site, in their order."""
    total = torch.zeros(0)
    for number, letter in enumerate(letters):
        if not number:
            total = letter.new_zeros(elements)
        total[_indices(letter)] += letter[len(letter) // 2 :]  # a site's indices are all different
    return total


def _only(future: Any) -> torch.Tensor:
    """Return the tensor of a future of one."""
    (tensor,) = future.value()
    found: torch.Tensor = tensor
    return found


def _into(buffer: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    buffer.copy_(result)
    return buffer


def _nothing_more() -> None:
    """The tensors hold the result already."""
