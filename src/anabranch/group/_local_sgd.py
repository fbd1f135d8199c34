"""Averages of a model by its optimiser's own steps: local SGD and DiLoCo, in two lines."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from anabranch.group._average import ModelAverage
from anabranch.group.blocking_group import Group
from anabranch.period import AnyPeriod
from anabranch.train.averaging import Outer
from anabranch.train.sharded import check_whole


class LocalSGD:
    """Let sites train by themselves, and average their models every so often.

    Every member enters the block at the same place, and all begin with the first one's parameters
    and those buffers that the model's state has::

        with anabranch.LocalSGD(model, optimizer, group, every=100):
            for batch in loader:
                compute(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    Each ``optimizer.step()`` counts one local step, and averages after it if that is due. At the
    block's end all average until the last has made its steps, and have the same parameters and
    buffers. Buffers, as of batch normalisation, are averaged as :meth:`Group.average` says.

    A site that leaves its block by an exception, or Ctrl-C, leaves the group by that exception, as
    where it leaves the group's own block: the others hear its message and average on without it,
    unless the scheduler is told ``--on-error abort``. Further calls of the group fail at that site.

    Args:
        model: a ``torch.nn.Module`` in float32; its parameters that need gradients, and buffers
            that its state has, are averaged in place, so it is moved to its device before, and its
            layers stay the same.
        optimizer: of these parameters; any ``torch.optim.Optimizer``. Others may step them, too,
            before it does.
        group: the sites; under torch.distributed, ``torch.backend.group_of()``.
        every, delay, fragments, weight, wire: as for :meth:`Group.average`.

    Attributes:
        average: what :meth:`Group.average` returned; None outside of the block.

    Raises:
        ValueError: on entering, as for :meth:`Group.average`; or the block is entered already, no
            parameter needs a gradient, one is not float32 or has no shape yet, the optimizer has
            others than these, or a buffer is sparse or cannot be written to. After an average or at
            the block's end, other parameters need gradients than on entering. With an outer
            optimiser, at its end, models have changed and no site has counted a step.
        ExchangeError, RunAborted: on entering, from the optimizer's step, and at the end, as for
            :meth:`ModelAverage.step`.
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
        self._trained: dict[str, Any] = {}  # the parameters that are averaged, by name
        self.average: ModelAverage | None = None

    def __enter__(self) -> Self:
        if self.average is not None:
            raise ValueError("this block is entered already; make another for another model")
        self._trained = _trained(self._model)
        self._check_optimizer()
        self._begin_alike()
        self.average = self._group.average(self._model, outer=self._outer, **self._how)
        self._hook = self._optimizer.register_step_post_hook(self._stepped)
        return self

    def _check_optimizer(self) -> None:
        if not hasattr(self._optimizer, "register_step_post_hook"):
            raise ValueError(
                f"optimizer is a {type(self._optimizer).__name__}, must be a torch.optim.Optimizer"
            )
        averaged = {id(each) for each in self._trained.values()}
        for number, group in enumerate(self._optimizer.param_groups):
            for each in group["params"]:
                if each.requires_grad and id(each) not in averaged:
                    raise ValueError(
                        f"the optimizer steps a parameter of shape {tuple(each.shape)}, in its "
                        f"group {number}, that is none of the model's which need gradients, so it "
                        "would not be averaged"
                    )

    def _begin_alike(self) -> None:
        """Overwrite parameters and buffers by the first site's, bit for bit."""
        for name, each in (*self._model.named_parameters(), *self._model.named_buffers()):
            if str(each.layout) != "torch.strided":
                raise ValueError(f"{name} is sparse; a model that is averaged is dense")
        try:
            self._group.broadcast(self._model)
        except RuntimeError as error:
            raise ValueError(f"a buffer of the model cannot be written to: {error}") from error

    def _stepped(self, *_: Any) -> None:
        assert self.average is not None
        if self.average.step():
            self._check_same()

    def _check_same(self) -> None:
        """Check that the model has the parameters that are averaged, and no others to train."""
        for name, each in self._model.named_parameters():
            if each.requires_grad and self._trained.get(name) is not each:
                raise ValueError(
                    f"{name} needs a gradient, and is no parameter that the model had when the "
                    "block was entered, so it is not averaged; change the model before"
                )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        average, self.average = self.average, None
        self._hook.remove()
        if average is None:
            return
        if error is not None:
            # The others' next average would wait for this site. How many averages they have begun
            # it cannot know, so that a later call of its own could be taken for one of these.
            self._group.__exit__(kind, error, traceback)
            return
        try:
            average.finish()
        except BaseException as raised:
            self._group.__exit__(type(raised), raised, raised.__traceback__)
            raise
        self._check_same()


def _trained(model: Any) -> dict[str, Any]:
    """Return the parameters that need gradients, by name."""
    if not hasattr(model, "named_parameters"):
        raise ValueError(f"model is a {type(model).__name__}, must be a torch.nn.Module")
    found = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not found:
        raise ValueError("no parameter of the model needs a gradient, so there is no average")
    for name, each in found.items():
        if hasattr(each, "materialize"):
            raise ValueError(f"{name} has no shape yet; run the model once before")
        check_whole(each, name)
        kind = str(each.dtype).removeprefix("torch.")
        if kind in ("float16", "bfloat16"):
            raise ValueError(
                f"{name} is {kind}, and small steps would be lost in its means; keep parameters "
                "in float32, and give wire= for fewer bytes"
            )
        if kind != "float32":
            raise ValueError(
                f"{name} is {kind}, and means are computed in float32, which would lose bits of "
                "it; make the parameters real ones in float32, as model.float() does"
            )
    return found


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
