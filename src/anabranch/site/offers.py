"""Connections between a site that takes none, as behind NAT, and a neighbour that sends to it.

Such a site connects to the neighbour itself and offers the connection: the neighbour's lane to it
takes that, as if it had made it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from anabranch.net.network import Connection


class Offers:
    """What neighbours have offered, until lanes take it."""

    def __init__(self) -> None:
        self._offered: defaultdict[int, dict[int, Connection]] = defaultdict(dict)
        self._awaited: dict[tuple[int, int], asyncio.Future[Connection]] = {}

    def add(self, neighbour: int, strand: int, connection: Connection) -> bool:
        """Take an offer of a neighbour; return False where it has made that one already."""
        awaited = self._awaited.pop((neighbour, strand), None)
        if awaited is not None and not awaited.done():
            awaited.set_result(connection)
            return True
        if strand in self._offered[neighbour]:
            return False
        self._offered[neighbour][strand] = connection
        return True

    async def take(self, neighbour: int, strand: int) -> Connection:
        """Return what a neighbour offers for a strand of the lane to it, once it does."""
        if strand in self._offered[neighbour]:
            return self._offered[neighbour].pop(strand)
        awaited: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._awaited[neighbour, strand] = awaited
        return await awaited

    def forget(self, neighbour: int, connection: Connection) -> None:
        """Take note that an offered connection has ended."""
        mine = self._offered[neighbour]
        for strand in [strand for strand, each in mine.items() if each is connection]:
            del mine[strand]

    def drop(self, neighbour: int) -> None:
        """Close what a neighbour has offered, and no lane has taken."""
        for connection in self._offered.pop(neighbour, {}).values():
            connection.close()

    def close(self) -> None:
        """Close all of it."""
        for neighbour in [*self._offered]:
            self.drop(neighbour)
