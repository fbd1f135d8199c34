"""Carries pipes to the scheduler, at most one for each neighbour that does not reach it.

Each pipe leads to the scheduler that this site joined; a neighbour cannot name another. All pipes
end with this site's direct connection, since only that connection notices a silent scheduler.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from anabranch.net.deadline import within
from anabranch.net.errors import LinkError
from anabranch.net.messages import Piped, Refusal
from anabranch.net.network import Address, Connection, ControlNetwork
from anabranch.net.pipe import End
from anabranch.net.session import LEAST_PATIENCE_S
from anabranch.site._ways import why_not


class Carrying:
    """The pipes that end at this site.

    Args:
        network: the network to the scheduler.
    """

    def __init__(self, network: ControlNetwork) -> None:
        self._network = network
        self._pipes: dict[int, End] = {}  # by neighbour
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, source: int, connection: Connection, scheduler: Address | None) -> End:
        """Pipe a neighbour's connection to the scheduler; return its receiver from now on.

        It replaces the neighbour's earlier pipe, which the neighbour knows to be broken. If this
        site cannot carry the pipe, it sends a refusal and closes the connection.

        Args:
            source: the neighbour, which has proved its identity.
            connection: the neighbour's connection.
            scheduler: the scheduler's address; None while this site does not reach it directly.
        """
        end = End(connection)
        why = why_not(source, self._pipes, scheduler is not None)
        if why is not None or scheduler is None:
            connection.post(Refusal(LinkError.__name__, why or ""))
            end.close()
            return end
        if source in self._pipes:
            self._pipes[source].cut()
        self._pipes[source] = end
        task = asyncio.get_running_loop().create_task(self._carry(source, end, scheduler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return end

    async def _carry(self, source: int, end: End, scheduler: Address) -> None:
        assert end.connection is not None
        try:
            await self._network.pipe_to(scheduler, end)
            end.connection.post(Piped())
            await end.ended.wait()
        except LinkError as error:
            end.connection.post(Refusal(LinkError.__name__, str(error)))
            end.close()
        finally:
            if self._pipes.get(source) is end:
                del self._pipes[source]

    def stop(self) -> None:
        """Cut all pipes, and drop their unsent data."""
        for task in self._tasks:
            task.cancel()
        for end in [*self._pipes.values()]:
            end.cut()

    async def finish(self) -> None:
        """Wait, for a bounded time, until all pipes have ended with the scheduler's last data."""
        if not self._tasks:
            return
        with suppress(TimeoutError):
            async with within(LEAST_PATIENCE_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)
