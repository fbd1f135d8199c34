"""One site's gossip from its first step to the mean of all models: the order of its calls.

A scenario's site (`run/_site.py`) and :class:`anabranch.ModelGossip` are programs over it.

    begin()  ->  may_step(), stepped(), send() if that is due, and again  ->  finish()

Before ``begin``, and from the middle of ``finish`` on, a broken lane is a loss, as in exchanges.
Between the two, gossip replaces a broken lane. So all sites begin together and finish together: no
letter leaves before all have begun, and none is on its way once all have said that they finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.letters import Letters
from anabranch.exchange.terms import Wire
from anabranch.period import Gossip
from anabranch.site.agent import Gossips, SiteAgent
from anabranch.site.round import Round
from anabranch.train.averaging import bounds
from anabranch.train.local_steps import LocalSteps

if TYPE_CHECKING:
    from anabranch.group._settings import Settings
    from anabranch.merge import AnyMerge

T = TypeVar("T")

_DRAWS = 0x605519  # separates the draws of neighbours from other draws of the same seed


def gossips_of(
    settings: Settings, site: int, model: Floats, wire: Wire, weight: float, seed: int = 0
) -> Gossips:
    """Return the rule, letters and random generator of one site's gossip.

    Args:
        settings: the group's: the gossip rule, and the merge rule, which weighs a letter by the
            steps that it is behind.
        site: this site's index.
        model: shape (elements,), the site's memory: letters carry it, and are mixed into it.
        wire: the type in which letters travel.
        weight: of this site's model beside others', > 0.
        seed: of the draws of neighbours.
    """
    gossip = settings.gossip
    assert gossip is not None
    chunks = bounds(len(model), -(-len(model) // settings.chunk_elements(len(model))))
    letters = Letters(site, model, chunks, wire, weight, gossip.rule, _counts(settings.merge))
    return Gossips(gossip, letters, np.random.default_rng((seed, _DRAWS, site)))


def _counts(merge: AnyMerge | None) -> Callable[[int], float]:
    if merge is None:
        return lambda behind: 1.0
    from anabranch.merge import UpdateFacts  # here, since few groups need this module

    return lambda behind: merge.weight(UpdateFacts(behind, samples=1, all_samples=1))


def weight_in_mean(gossip: Gossip, weight: float) -> float:
    """Return a site's weight in the mean of all: 1 by push-sum, whose letters carry the weight."""
    return 1.0 if gossip.rule == "push-sum" else weight


class GossipRun:
    """One site's gossip; the agent has started with a ``Gossips``.

    Args:
        agent: the site's.
        local: counts the steps and says when to send; the owner tells it of each step.

    Attributes:
        local: see above.
        has_stopped: whether a stop rule forbids further steps.
    """

    def __init__(self, agent: SiteAgent, local: LocalSteps) -> None:
        self.local = local
        self.has_stopped = False
        self._agent = agent
        self._gossiping = agent.gossiping

    @property
    def is_finished(self) -> bool:
        """Whether no more letters are sent or used, and exchanges are as without gossip."""
        return self._gossiping.is_finished

    def begin(self) -> None:
        """Replace broken lanes from now on."""
        self._gossiping.begin()

    async def may_step(self) -> bool:
        """Wait until another step keeps this site within ``most_ahead`` steps of the others.

        Returns:
            Whether to make that step; False where the run is to end.
        """
        may_step = await self._gossiping.may_step()
        self.has_stopped |= not may_step
        return may_step

    def stepped(self) -> bool:
        """Tell neighbours of a step, and use letters; return whether to send the model."""
        self._gossiping.stepped()
        self._gossiping.use()
        return self.local.is_due(is_called=False)

    def send(self) -> None:
        """Send the model to some neighbours."""
        self._gossiping.send()
        self.local.sent()

    async def finish(self, exchange: Callable[[Floats], Awaitable[Round]]) -> tuple[Round, Floats]:
        """Wait for all sites, and make each model the weighted mean of all.

        Args:
            exchange: replaces elements by their mean over all sites, with ``weight_in_mean``.

        Returns:
            The exchange, and the model: the same bits at every site.
        """
        gossiping, agent = self._gossiping, self._agent
        await gossiping.finish()
        await agent.gather(b"")  # no letters come after that
        gossiping.end()
        # Before the exchange: a site that is lost later may still contribute to it.
        told = await agent.gather(gossiping.weights)
        weights = dict(zip(told.members, told.values, strict=True))
        elements = await _off_the_loop(gossiping.contribution)
        done = await exchange(elements)
        agree = partial(gossiping.agree, elements, weights, done.contributions)
        return done, await _off_the_loop(agree)


async def _off_the_loop(do: Callable[[], T]) -> T:
    """Compute in another thread, so that the loop keeps running."""
    return await asyncio.get_running_loop().run_in_executor(None, do)
