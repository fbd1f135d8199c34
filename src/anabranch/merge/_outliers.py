"""Clients whose updates point elsewhere take no further part (R²SP, IV-B2)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.merge._merge import UpdateFacts

_ROUNDING = 1e-9  # by which a part of a number of clients may miss a whole number
_Share = Annotated[float, Meta(ge=0, le=1)]


class OutlierFilter(Table, frozen=True, kw_only=True, tag_field="kind", tag="outlier-filter"):
    """A client is an outlier if its update and the mean of its step's keep pointing apart.

    After each step the servers tell the cosine of the angle between each update in it and their
    mean. A client with ``patience`` cosines running below ``beta`` is barred: it computes no more
    updates. What it has contributed stays in the model. Only where the model is the mean of all
    clients' last models (``serve.mixes = "cache"``), the barred client's leaves it. Every update
    weighs 1.

    Args:
        beta: the least cosine, in [-1, 1]; the paper's 0.5.
        patience: how many in a row; the paper's 3.
        ends_after: how many steps of the model later a barred client is let in again, its count
            at 0; None for never, as the paper has it. Where all are barred, so that no step would
            come, those who have been for longest are let in.
        most: no larger part of the clients is barred at once, in [0, 1]; 1 for as many as it finds,
            as the paper has it.
    """

    beta: Annotated[float, Meta(ge=-1, le=1)] = 0.5
    patience: Positive = 3
    ends_after: Positive | None = None
    most: _Share = 1.0
    weighs_data: ClassVar[bool] = False
    asks_loss: ClassVar[bool] = False
    asks_norm: ClassVar[bool] = False

    def weight(self, facts: UpdateFacts) -> float:
        """Return 1: an update counts or does not."""
        return 1.0

    def start(self) -> Judge:
        """Return what follows the clients of one run."""
        return Judge(self)


class Judge:
    """Who is barred in one run. It has no clock: the model's version is its time.

    Args:
        rule: see there.

    Attributes:
        barred: by client, at which version of the model that began.

    >>> judge = OutlierFilter(beta=0.5, patience=2, ends_after=10).start()
    >>> judge.saw(client=7, cosine=0.1, version=1, clients=4)
    False
    >>> judge.saw(client=7, cosine=0.2, version=2, clients=4)
    True
    >>> judge.over(version=11), judge.over(version=12)
    ((), (7,))
    >>> judge.readmit(7)
    >>> judge.barred
    {}
    """

    def __init__(self, rule: OutlierFilter) -> None:
        self._rule = rule
        self._below: dict[int, int] = {}
        self.barred: dict[int, int] = {}

    def saw(self, client: int, cosine: float, version: int, clients: int) -> bool:
        """Take note of how far an update agrees with its step; return whether to bar its client.

        Args:
            client: whose.
            cosine: of the angle between the two.
            version: of the model, with the step.
            clients: how many there are, barred ones too.
        """
        if client in self.barred:
            return False
        below = self._below.get(client, 0) + 1 if cosine < self._rule.beta else 0
        self._below[client] = below
        room = len(self.barred) + 1 <= self._rule.most * clients + _ROUNDING
        if below < self._rule.patience or not room:
            return False
        self.barred[client] = version
        return True

    def over(self, version: int) -> tuple[int, ...]:
        """Return the barred clients that may be let in, now that the model has this version."""
        after = self._rule.ends_after
        if after is None:
            return ()
        return tuple(client for client, since in self.barred.items() if version - since >= after)

    def eldest(self, among: Collection[int] | None = None) -> tuple[int, ...]:
        """Return those who have been barred for longest, if that ever ends.

        Args:
            among: of these; None for all who are barred.
        """
        there = [each for each in self.barred if among is None or each in among]
        if self._rule.ends_after is None or not there:
            return ()
        since = min(self.barred[each] for each in there)
        return tuple(each for each in there if self.barred[each] == since)

    def readmit(self, client: int) -> None:
        """Take note that a barred client takes part again."""
        del self.barred[client], self._below[client]


def cosine(dot: float, squared_norm: float, other_squared_norm: float) -> float:
    """Return the cosine of an angle, in [-1, 1]; 1 where an update or a step is nothing at all.

    Args:
        dot: of the two vectors.
        squared_norm, other_squared_norm: of each.
    """
    product = squared_norm * other_squared_norm
    if 0.0 < product < math.inf:
        both = math.sqrt(product)  # of two alike it is exactly each
    else:
        both = math.sqrt(squared_norm) * math.sqrt(other_squared_norm)
    return max(-1.0, min(1.0, dot / both)) if both else 1.0
