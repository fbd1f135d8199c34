"""The reports of servers on how far updates agree with their steps, and the verdicts due. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from anabranch.merge import Judge, cosine
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Agreed
from anabranch.pace import Update


class Outliers:
    """The verdicts of a merge rule's filter on updates, and those that are due.

    Args:
        judge: names the clients to bar, or the workers that stand for themselves.

    Attributes:
        judge: see above.
        unjudged: by update that is in a step and not judged yet, its client or worker.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.unjudged: dict[Update, int] = {}
        # By the updates of each step that is to be judged, the reports of the servers.
        self._said: dict[tuple[Update, ...], dict[int, Agreed]] = {}

    def merged(self, updates: Sequence[Update]) -> None:
        """Note a step's updates, on which servers will report."""
        if updates:
            self._said[tuple(updates)] = {}

    def agreed(
        self, server: int, servers: Collection[int], told: Agreed
    ) -> list[tuple[Update, float]]:
        """Take a server's report of how far a step's updates agree with their mean.

        Args:
            server: the reporter.
            servers: all sites that hold the model.
            told: the report, of the server's part of the model.

        Returns:
            With the last server's report, each update and the cosine between it and the mean.

        Raises:
            OutOfPlaceMessage: the site is no server, has reported before, or there was no such
                step.
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
