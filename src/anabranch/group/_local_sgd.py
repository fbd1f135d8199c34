"""Averages of a model, counted by its optimiser's steps: local SGD and DiLoCo in two lines."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from anabranch.group._average import ModelAverage
from anabranch.group.blocking_group import Group
from anabranch.period import AnyPeriod
from anabranch.train.averaging import Outer, WireName
from anabranch.train.sharded import check_whole


class LocalSGD:
    """Local SGD: sites train independently, and average their models periodically.

    Every member enters the block at the same place. All begin with the first member's parameters
    and its buffers in the model's ``state_dict``::

        with anabranch.LocalSGD(model, optimizer, group, every=100):
            for batch in loader:
                compute(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    Each ``optimizer.step()`` counts as one local step; an average follows if one is due. At the
    block's end, members average until the last has made its steps. Then all have the same
    parameters and buffers. Buffers, as of batch normalisation, are averaged as
    :meth:`Group.average` says.

    If an exception or Ctrl-C ends the block at a site, this site leaves the group with that error.
    The others get the message and continue to average without it, unless the scheduler's
    ``--on-error`` is ``abort``. Further calls of the group fail at that site.

    Args:
        model: a ``torch.nn.Module`` in float32. Its parameters that need gradients, and the buffers
            in its ``state_dict``, are averaged in place. So move it to its device before, and do
            not change its layers.
        optimizer: any ``torch.optim.Optimizer`` of these parameters. Other optimizers may step
            them, too, before this one does.
        group: the sites; under torch.distributed, ``torch.backend.group_of()``.
        every, delay, fragments, weight, wire: as for :meth:`Group.average`.

    Attributes:
        average: the result of :meth:`Group.average`; None outside of the block.

    Raises:
        ValueError: on entering: as for :meth:`Group.average`. Or the block is entered already; no
            parameter needs a gradient; one is not float32 or has no shape yet; the optimizer has
            other parameters that need gradients; or a buffer is sparse or cannot be written to.
            After an average or at the block's end: other parameters need gradients than on
            entering. At the end, with an outer optimiser: models have changed and no site has
            counted a step.
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
        every: int | str | AnyPeriod,
        delay: int = 0,
        fragments: int = 1,
        weight: float | Literal["steps"] = 1.0,
        wire: WireName | None = None,
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
        """Check that the model trains only the parameters that are averaged."""
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
            # The others' next average would wait for this site, which does not know how many they
            # have begun. So they could take a later call of this site for one of their averages.
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

    With ``fragments`` and ``delay`` it is Streaming DiLoCo (2025): sites average one part of the
    model at a time, while they make local steps. Use it like :class:`LocalSGD`::

        with anabranch.DiLoCo(model, optimizer, group, every=100):
            ...

    Args:
        model, optimizer, group, every, delay, fragments, weight, wire: as for :class:`LocalSGD`.
        outer: the outer optimiser, which steps by the mean change of the sites' models. If not
            given, the paper's: Nesterov momentum of 0.9 and a learning rate of 0.7.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        group: Group,
        *,
        every: int | str | AnyPeriod,
        outer: Outer | None = None,
        delay: int = 0,
        fragments: int = 1,
        weight: float | Literal["steps"] = 1.0,
        wire: WireName | None = None,
    ) -> None:
        super().__init__(
            model,
            optimizer,
            group,
            every=every,
            delay=delay,
            fragments=fragments,
            weight=weight,
            wire=wire,
        )
        self._outer = Outer() if outer is None else outer
