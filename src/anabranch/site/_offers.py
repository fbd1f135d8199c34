"""Offers of connections, by sites that take none (for example behind NAT).

Such a site connects to each neighbour, and offers the connection. The neighbour's lane to the site
uses it as if it had made it. If an offered connection ends before a lane has taken it, the site
offers another; that is not the end of a lane.
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
_AWAITED_S = 5.0  # a reachable neighbour makes its offer within this time

Offer = Callable[[], Awaitable[tuple[Connection, asyncio.Future[bool]]]]
"""Makes and offers a connection; the future is True once it is taken, False if it ends first."""


class Offering:
    """The offers that this site makes, if it takes no connections."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}  # by neighbour

    def keep(self, neighbour: int, *offers: Offer) -> None:
        """Make these offers to a neighbour, each again and again until it is taken."""
        self.withdraw(neighbour)
        loop = asyncio.get_running_loop()
        self._tasks[neighbour] = [loop.create_task(self._keep(offer)) for offer in offers]

    async def _keep(self, offer: Offer) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                connection, taken = await offer()
            except (NetError, TlsError):
                pass  # the neighbour is unreachable, or this site's certificate is being renewed
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
        """Withdraw the offers to a neighbour that have not been taken."""
        for task in self._tasks.pop(neighbour, ()):
            task.cancel()

    def close(self) -> None:
        """Withdraw all offers that have not been taken."""
        for neighbour in [*self._tasks]:
            self.withdraw(neighbour)


class Offers:
    """The connections that neighbours have offered, until lanes take them."""

    def __init__(self) -> None:
        self._offered: defaultdict[int, dict[int, Connection]] = defaultdict(dict)
        self._awaited: dict[tuple[int, int], asyncio.Future[Connection]] = {}

    def add(self, neighbour: int, strand: int, connection: Connection) -> bool:
        """Add a neighbour's offer; return False if it has offered this strand already."""
        awaited = self._awaited.pop((neighbour, strand), None)
        if awaited is not None and not awaited.done():
            awaited.set_result(connection)
            return True
        if strand in self._offered[neighbour]:
            return False
        self._offered[neighbour][strand] = connection
        return True

    async def take(self, neighbour: int, strand: int) -> Connection:
        """Wait for a neighbour's offer for a strand of the lane to it; return the connection.

        Raises:
            LinkError: it has made no offer for strand 0 in time.
        """
        if strand in self._offered[neighbour]:
            return self._offered[neighbour].pop(strand)
        awaited: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._awaited[neighbour, strand] = awaited
        # Only strand 0 has a deadline: the neighbour may use fewer strands than this site.
        try:
            async with within(_AWAITED_S) if strand == 0 else nullcontext():
                return await awaited
        except asyncio.CancelledError:
            if awaited.done() and not awaited.cancelled():  # the offer came in the same turn
                self._offered[neighbour][strand] = awaited.result()
            raise
        except TimeoutError:
            why = f"site {neighbour} takes no connections, and made none in {_AWAITED_S:g} s"
            raise LinkError(why) from None

    def forget(self, neighbour: int, connection: Connection) -> bool:
        """Remove a connection that has ended; return whether it was an offer not taken yet."""
        mine = self._offered[neighbour]
        strands = [strand for strand, each in mine.items() if each is connection]
        for strand in strands:
            del mine[strand]
        return bool(strands)

    def drop(self, neighbour: int) -> None:
        """Close a neighbour's offers that no lane has taken."""
        for connection in self._offered.pop(neighbour, {}).values():
            connection.close()

    def close(self) -> None:
        """Close all offers that no lane has taken."""
        for neighbour in [*self._offered]:
            self.drop(neighbour)
