"""What servers say of how far updates agree with their steps, and who is barred for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from anabranch.merge import Judge, cosine
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Agreed
from anabranch.pace import Update


class Outliers:
    """Those whose updates keep pointing elsewhere, where the merge rule has a filter.

    Args:
        judge: names the clients to bar, or the workers that stand for themselves.

    Attributes:
        judge: see above.
        unjudged: updates that are in a step and not judged yet, and whose each is.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.unjudged: dict[Update, int] = {}
        # By the updates of each step that is to be judged, what each server said of it.
        self._said: dict[tuple[Update, ...], dict[int, Agreed]] = {}

    def merged(self, updates: Sequence[Update]) -> None:
        """Take note of a step's updates, which servers tell of."""
        if updates:
            self._said[tuple(updates)] = {}

    def agreed(
        self, server: int, servers: Collection[int], told: Agreed
    ) -> list[tuple[Update, float]]:
        """Take what a server says of how far a step's updates agree with their mean.

        Args:
            server: which.
            servers: all that hold the model.
            told: of its part of the model.

        Returns:
            Once all servers have said it, each update with the cosine of the angle between the two.

        Raises:
            OutOfPlaceMessage: it holds no part, has said so before, or there was no such step.
        """
        said = self._said.get(told.updates)
        if server not in servers or said is None or server in said:
            raise OutOfPlaceMessage(
                f"site {server} tells how updates {list(told.updates)} agree, which is not awaited"
            )
        said[server] = told
        if said.keys() != {*servers}:
            return []
        del self._said[told.updates]
        parts = [said[each] for each in sorted(said)]
        square = math.fsum(part.squared_norm for part in parts)
        return [
            (
                update,
                cosine(
                    math.fsum(part.dots[place] for part in parts),
                    math.fsum(part.squared_norms[place] for part in parts),
                    square,
                ),
            )
            for place, update in enumerate(told.updates)
        ]
