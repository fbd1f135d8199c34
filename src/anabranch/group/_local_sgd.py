"""Averages of a model by its optimiser's own steps: local SGD and DiLoCo, in two lines."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from anabranch.group._average import ModelAverage
from anabranch.group._group import Group
from anabranch.learn.averaging import Outer
from anabranch.period import AnyPeriod


class LocalSGD:
    """Let sites train by themselves, and average their models every so often.

    Every member enters the block at the same place, and all begin with the first one's parameters
    and buffers::

        with anabranch.LocalSGD(model, optimizer, group, every=100):
            for batch in loader:
                compute(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    Each ``optimizer.step()`` counts one local step, and averages after it if that is due. At the
    block's end all average until the last has made its steps, and have the same parameters. One
    that is left by an exception averages no more. Buffers, as of batch normalisation, are each
    site's own.

    Args:
        model: a ``torch.nn.Module`` in float32; its parameters that need gradients are averaged,
            in place, so it is moved to its device before.
        optimizer: of these parameters; any ``torch.optim.Optimizer``.
        group: the sites; under torch.distributed, ``interop.torch_backend.group_of()``.
        every, delay, fragments, weight, wire: as for :meth:`Group.average`.

    Attributes:
        average: what :meth:`Group.average` returned; None outside of the block.

    Raises:
        ValueError: on entering, as for :meth:`Group.average`; or no parameter needs a gradient.
    """

    _outer: Outer | None = None

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        group: Group,
        *,
        every: int | AnyPeriod,
        delay: int = 0,
        fragments: int = 1,
        weight: float = 1.0,
        wire: Literal["float32", "float16", "bfloat16"] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._group = group
        self._how: dict[str, Any] = {
            "every": every,
            "delay": delay,
            "fragments": fragments,
            "weight": weight,
            "wire": wire,
        }
        self._hook: Any = None
        self.average: ModelAverage | None = None

    def __enter__(self) -> Self:
        if self.average is not None:
            raise ValueError("this block is entered already; make another for another model")
        parameters = [each for each in self._model.parameters() if each.requires_grad]
        if not parameters:
            raise ValueError("no parameter of the model needs a gradient, so there is no average")
        self._begin_alike()
        average = self._group.average(parameters, outer=self._outer, **self._how)
        self._hook = self._optimizer.register_step_post_hook(lambda *_: average.step() and None)
        self.average = average
        return self

    def _begin_alike(self) -> None:
        """Overwrite parameters and buffers by the first site's, bit for bit."""
        import torch

        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for each in (*self._model.parameters(), *self._model.buffers()):
            tensor = each.detach()
            if tensor.element_size() in (4, 8) and tensor.is_contiguous():
                tensor = tensor.reshape(-1).view(torch.float32)  # words of the same bits
            if tensor.is_floating_point() and tensor.numel():
                by_type.setdefault(tensor.dtype, []).append(tensor)
        for _, tensors in sorted(by_type.items(), key=str):
            self._group.broadcast(tensors)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        average, self.average = self.average, None
        self._hook.remove()
        if error is None and average is not None:
            average.finish()


class DiLoCo(LocalSGD):
    """Local SGD whose averages are steps of an outer optimiser (Douillard et al., 2023).

    With ``fragments`` and ``delay`` it is Streaming DiLoCo (2025): a part of the model is averaged
    at a time, while local steps go on. As :class:`LocalSGD`, and::

        with anabranch.DiLoCo(model, optimizer, group, every=100):
            ...

    Args:
        model, optimizer, group, every, delay, fragments, weight, wire: as for :class:`LocalSGD`.
        outer: the outer optimiser, which steps by the mean of what sites' models have changed by;
            the paper's, with Nesterov momentum of 0.9 and a learning rate of 0.7, if not given.
    """

    def __init__(
        self, model: Any, optimizer: Any, group: Group, *, outer: Outer | None = None, **how: Any
    ) -> None:
        super().__init__(model, optimizer, group, **how)
        self._outer = Outer() if outer is None else outer
