"""A filter that bars clients whose updates point in other directions (R²SP, IV-B2)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.merge._merge import UpdateFacts

_ROUNDING = 1e-9  # a part of the clients may miss a whole number by this much
_Share = Annotated[float, Meta(ge=0, le=1)]


class OutlierFilter(Table, frozen=True, kw_only=True, tag_field="kind", tag="outlier-filter"):
    """A client is an outlier if its update and the mean of its step's keep pointing apart.

    After each step the servers report the cosine of the angle between each update in it and the
    mean of these updates. A client with ``patience`` cosines in a row below ``beta`` is barred: it
    computes no more updates. Its past updates stay in the model. Where the model is the mean of all
    clients' last models (``serve.mixes = "cache"``), the barred client's model leaves the mean.
    Every update weighs 1.

    Args:
        beta: the least cosine, in [-1, 1]; the paper's 0.5.
        patience: how many cosines in a row; the paper's 3.
        ends_after: after how many steps of the model a barred client returns, with its count at 0;
            None for never, as in the paper. Where all clients are barred, so that no step would
            come, those barred for longest return.
        most: the largest part of the clients barred at once, in [0, 1]; 1 for no limit, as in the
            paper.
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
        """Return a new judge, for the clients of one run."""
        return Judge(self)


class Judge:
    """The barred clients of one run. It has no clock: the model's version is its time.

    Args:
        rule: the filter's parameters.

    Attributes:
        barred: for each barred client, the version of the model at which it was barred.

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
        """Record how well an update agrees with its step; return whether to bar its client.

        Args:
            client: by index.
            cosine: of the angle between the update and the step's mean.
            version: of the model, after the step.
            clients: number of clients, barred ones too.
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
        """Return the barred clients that may return, now that the model has this version."""
        after = self._rule.ends_after
        if after is None:
            return ()
        return tuple(client for client, since in self.barred.items() if version - since >= after)

    def eldest(self, among: Collection[int] | None = None) -> tuple[int, ...]:
        """Return the clients barred for longest; none if ``ends_after`` is None.

        Args:
            among: clients to choose from; None for all barred clients.
        """
        there = [each for each in self.barred if among is None or each in among]
        if self._rule.ends_after is None or not there:
            return ()
        since = min(self.barred[each] for each in there)
        return tuple(each for each in there if self.barred[each] == since)

    def readmit(self, client: int) -> None:
        """Remove a client from the barred ones, and set its count to 0."""
        del self.barred[client], self._below[client]


def cosine(dot: float, squared_norm: float, other_squared_norm: float) -> float:
    """Return the cosine of an angle, in [-1, 1]; 1 where either vector is 0.

    Args:
        dot: of the two vectors.
        squared_norm, other_squared_norm: of each.
    """
    product = squared_norm * other_squared_norm
    if 0.0 < product < math.inf:
        both = math.sqrt(product)  # for equal norms this is exact
    else:
        both = math.sqrt(squared_norm) * math.sqrt(other_squared_norm)
    return max(-1.0, min(1.0, dot / both)) if both else 1.0
