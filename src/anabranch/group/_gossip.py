"""A model that gossips: between a user's steps, the site mixes neighbours' models into it.

Theory of operation
-------------------

The model exists twice: the user's parameters, and ``_model``, one flat array of the loop's thread::

    the user's thread                          the loop's thread
    -----------------                          -----------------
    optimizer.step()                           chunks of letters arrive in separate buffers
    step():  parameters -> _model
             run(_mix)             -------->   steps told to neighbours; letters mixed into _model;
                                               _model sent if due; wait by ``most_ahead``
             _model -> parameters  <--------
    finish(): the same, and then the weighted mean of all models by an exchange

The states are *gossiping*, from the constructor on; *stopped*, once a step learns that a stop rule
ends the run (``step`` returns False); and *finished*, once each model is the mean of all. Only then
may the group make other calls. ``group/gossip.py`` has the order of one site's steps.

What must never happen:

- *A letter and a user's step change the model at once.* The loop's thread mixes only while the
  user's thread waits in ``step`` or ``finish``; the user's step changes only the parameters.
- *The mixed model is lost.* ``step`` writes it back even if the mixing fails, so both copies agree.
- *NaN reaches a neighbour.* Each read checks the parameters, unless ``on_nan`` allows it.
- *A letter reaches a site before it begins.* The constructor ends with a gathering of all sites.
- *Buffers are mixed.* A late letter could make a variance negative, so ``finish`` averages them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anabranch.exchange.arithmetic import Buffer, Flat, Floats
from anabranch.exchange.reduction import weight_of
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import _settings
from anabranch.group._average import period_of, trained_of
from anabranch.group._buffers import Buffers
from anabranch.group.async_group import AsyncGroup
from anabranch.group.gossip import GossipRun, gossips_of, weight_in_mean
from anabranch.group.tensors import WIRES, Tensors, buffers_of, find_not_finite, is_module, several
from anabranch.group.words import Moved
from anabranch.period import AnyPeriod
from anabranch.site.agent import Gossips
from anabranch.site.round import Round
from anabranch.train.averaging import Average
from anabranch.train.local_steps import LocalSteps


@dataclass(frozen=True, slots=True)
class Calls:
    """The group calls that gossip uses.

    Args:
        check_open: raises RunAborted once this site has left.
        run: runs a call in the group's loop, and waits for its end.
        start: starts this site, which gossips as the argument says.
        exchange: exchanges a buffer, given its terms and weight; in the loop.
        ended: records an exchange, once a call has waited for its end.
        refuses_nan: returns whether NaN and infinities in the model are an error.
    """

    check_open: Callable[[], None]
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    start: Callable[[Gossips], Awaitable[None]]
    exchange: Callable[[Buffer, Terms, float], Awaitable[Round]]
    ended: Callable[[Round], None]
    refuses_nan: Callable[[], bool]


class ModelGossip:
    """A model that gossips with the models of neighbours; :meth:`Group.gossip` makes one.

    One thread calls it.
    """

    def __init__(
        self,
        calls: Calls,
        site: AsyncGroup,
        settings: _settings.Settings,
        given: Any,
        every: Any,
        weight: float,
        wire: str | None,
    ) -> None:
        if wire is not None and wire not in WIRES:
            raise ValueError(f"wire is {wire!r}, must be one of {', '.join(WIRES)}")
        how = settings.gossip
        assert how is not None
        period = _period_of(every)
        is_model = is_module(given)
        self._tensors = Tensors(trained_of(given) if is_model else several(given))
        self._find_buffers = partial(buffers_of, given) if is_model else list
        beside = [each for each in given.parameters() if not each.requires_grad] if is_model else []
        if self._tensors.wire != Wire.FLOAT32:
            raise ValueError(
                f"parameters are {self._tensors.wire.name.lower()}, and mixing would round small "
                "steps away; keep them in float32, and give wire= for fewer bytes"
            )
        self._calls = calls
        self._site = site
        self._wire = Wire.FLOAT32 if wire is None else WIRES[wire]
        self._weight = weight_of(weight)
        self._weight_in_mean = weight_in_mean(how, self._weight)
        self._model: Floats = np.empty(self._tensors.elements, np.float32)
        gossips = gossips_of(settings, site.index, self._model, self._wire, self._weight)
        self._run: GossipRun = calls.run(self._begin(gossips, period, beside))
        self._buffers = Buffers(self._find_buffers)

    async def _begin(self, gossips: Gossips, period: AnyPeriod, beside: list[Any]) -> GossipRun:
        """Start, copy the first member's model to all sites, and wait until all have it."""
        site, calls = self._site, self._calls
        await calls.start(gossips)
        moved = Moved([*self._tensors.given, *beside, *self._find_buffers()])
        said = [str(period), self._wire.name, self._tensors.elements, moved.elements]
        called = "gossips (how often, wire, elements, words of the model)"
        first = await site.agree_on(said, called)
        await calls.exchange(moved, Terms(Op.COPY, moved.wire, moved.elements, first), 1.0)
        moved.finish()
        self._read()
        run = GossipRun(site.agent, LocalSteps([self._model], period, Average()))
        run.begin()
        await site.agent.gather(b"")  # so that no letter reaches a site before it begins
        return run

    @property
    def steps(self) -> int:
        """How many calls of :meth:`step` this site has made."""
        return self._run.local.steps

    @property
    def sent(self) -> int:
        """How many times this site has sent its model."""
        return self._run.local.begun

    @property
    def has_stopped(self) -> bool:
        """Whether a stop rule ended the run, as the latest :meth:`step` returned."""
        return self._run.has_stopped

    @property
    def is_finished(self) -> bool:
        """Whether :meth:`finish` is done, so that the group's other calls may follow."""
        return self._run.is_finished

    def step(self) -> bool:
        """Mix letters into the model, and send it if due; call after each ``optimizer.step()``.

        It waits while this site is ahead of another by as many steps as ``most_ahead`` allows.

        Returns:
            Whether to make another step; False once a stop rule of the scheduler ends the run.

        Raises:
            ValueError: a parameter has other memory than before, or the model has NaN or an
                infinity and :attr:`Group.on_nan` is ``"raise"``; names the parameter. Or the gossip
                is finished.
            RunAborted: the group has ended; names the cause.
        """
        self._calls.check_open()
        if self.is_finished:
            raise ValueError(
                "this gossip is finished, and all models are alike: make no more steps"
            )
        self._read()
        self._run.local.stepped(0.0)  # no period of gossip uses the duration of a step
        try:
            goes_on: bool = self._calls.run(self._mix())
        finally:
            self._write()
        return goes_on

    async def _mix(self) -> bool:
        if self._run.stepped():
            self._run.send()
        return await self._run.may_step()

    def finish(self) -> None:
        """Make each model the weighted mean of all, bit for bit; every member calls it at its end.

        It waits for the other members, and uses their letters meanwhile. Floating-point buffers
        become their weighted mean; all other buffers become the first member's. After that, the
        group's other calls may follow.

        Raises:
            ValueError: as for :meth:`step`.
            ExchangeError: another member has left, and the scheduler's settings do not permit the
                others to continue without it.
            RunAborted: the group has ended; names the cause.
        """
        self._calls.check_open()
        if self.is_finished:
            raise ValueError("this gossip is finished, and all models are alike: finish it once")
        self._read()
        done: Round = self._calls.run(self._finish())
        self._write()
        self._calls.ended(done)

    async def _finish(self) -> Round:
        exchange = self._calls.exchange

        def mean(elements: Floats) -> Awaitable[Round]:
            terms = Terms(Op.MEAN, self._wire, len(elements))
            return exchange(Flat(elements), terms, self._weight_in_mean)

        done, _ = await self._run.finish(mean)
        if floats := self._buffers.contribute():
            tensors = Tensors(floats)
            terms = Terms(Op.MEAN, Wire.FLOAT32, tensors.elements)
            done = await exchange(tensors, terms, self._weight)
            self._buffers.take()
        if self._buffers.has_copied:
            words = Tensors(self._buffers.words(), Op.COPY)
            first = min(done.members, default=0)  # empty where a loss ends the group
            done = await exchange(words, Terms(Op.COPY, words.wire, words.elements, first), 1.0)
            self._buffers.take_words()
        return done

    def _read(self) -> None:
        """Copy the parameters into the flat model.

        Raises:
            ValueError: a parameter has other memory than before. Or it has NaN or an infinity,
                which letters, and answers to letters, would carry to other sites.
        """
        tensors = self._tensors
        tensors.refresh()
        found = find_not_finite(tensors.parts, tensors.wire) if self._calls.refuses_nan() else None
        if found is not None:
            raise ValueError(
                f"parameter {found[0]} has {found[1]} NaN or infinite elements, which the other "
                "sites would get; set group.on_nan = 'allow' to gossip with them"
            )
        np.concatenate(tensors.parts, out=self._model)

    def _write(self) -> None:
        self._tensors.write(0, self._model)
        self._tensors.finish()


def _period_of(every: Any) -> AnyPeriod:
    """Return the period of a user's ``every``.

    Raises:
        ValueError: this period is not for gossip.
    """
    period = period_of(every)
    if period.shares:
        raise ValueError(
            f"every: {period} needs the measurements of all sites, and a site that gossips hears "
            "only its neighbours; give a number of steps, or anabranch.Moved(by=0.05)"
        )
    return period
