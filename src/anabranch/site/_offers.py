"""Connections between a site that takes none, as behind NAT, and neighbours that send to it.

Such a site connects to a neighbour itself and offers the connection: the neighbour's lane to it
takes that, as if it had made it. An offer that is not taken is no lane; where it breaks, it is made
again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from anabranch.net.deadline import within
from anabranch.net.errors import LinkError, NetError
from anabranch.net.network import Connection
from anabranch.net.tls import TlsError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0  # before an offer is made again
_AWAITED_S = 5.0  # a neighbour that can be reached has made its offer by then

Offer = Callable[[], Awaitable[tuple[Connection, asyncio.Future[bool]]]]
"""Makes a connection and offers it; the future has whether it was taken, else it has ended."""


class Offering:
    """What this site offers, where it takes no connections."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}  # by neighbour

    def keep(self, neighbour: int, *offers: Offer) -> None:
        """Make offers to a neighbour until they are taken."""
        self.withdraw(neighbour)
        loop = asyncio.get_running_loop()
        self._tasks[neighbour] = [loop.create_task(self._keep(offer)) for offer in offers]

    async def _keep(self, offer: Offer) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                connection, taken = await offer()
            except (NetError, TlsError):
                pass  # it cannot be reached now, or this site's certificate is being renewed
            else:
                try:
                    if await taken:
                        return
                except asyncio.CancelledError:
                    connection.close()
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def withdraw(self, neighbour: int) -> None:
        """Offer nothing to a neighbour that has not been taken."""
        for task in self._tasks.pop(neighbour, ()):
            task.cancel()

    def close(self) -> None:
        """Offer nothing to any."""
        for neighbour in [*self._tasks]:
            self.withdraw(neighbour)


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
        """Return what a neighbour offers for a strand of the lane to it, once it does.

        Raises:
            LinkError: it has offered nothing at all for seconds.
        """
        if strand in self._offered[neighbour]:
            return self._offered[neighbour].pop(strand)
        awaited: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._awaited[neighbour, strand] = awaited
        # It may have fewer strands than this site.
        try:
            async with within(_AWAITED_S) if strand == 0 else nullcontext():
                return await awaited
        except asyncio.CancelledError:
            if awaited.done() and not awaited.cancelled():  # in the same moment
                self._offered[neighbour][strand] = awaited.result()
            raise
        except TimeoutError:
            why = f"site {neighbour} takes no connections, and made none in {_AWAITED_S:g} s"
            raise LinkError(why) from None

    def forget(self, neighbour: int, connection: Connection) -> bool:
        """Take note that a connection has ended; return whether it was offered, and not taken."""
        mine = self._offered[neighbour]
        strands = [strand for strand, each in mine.items() if each is connection]
        for strand in strands:
            del mine[strand]
        return bool(strands)

    def drop(self, neighbour: int) -> None:
        """Close what a neighbour has offered, and no lane has taken."""
        for connection in self._offered.pop(neighbour, {}).values():
            connection.close()

    def close(self) -> None:
        """Close all of it."""
        for neighbour in [*self._offered]:
            self.drop(neighbour)
