"""A site's lanes to its neighbours, the paths of chunks over them, and the chunks it relays.

**The way of a message out of a site**::

    own chunk --routes[path]--> Fork, if there are auxiliary paths --put--> Lane of the next hop
    neighbour's chunk --Relays.receive--> (all of it is here) ------put-----^
    neighbour's Credit --credit--> Lane: one more chunk of that route may leave
                                   Fork: its first relay has room again

- A message names its whole path. It takes the lane to the site after this one.
- A :class:`Fork` binds a chunk to the primary or an auxiliary path, as late as possible. It counts
  the bound chunks, so it must hear of each that has left (``Send.then``) or was credited.
- ``routes`` remembers the function that takes a path's messages, since every chunk needs it. It is
  cleared whenever a lane or a fork changes.
- A lane is opened at the first message to a neighbour. ``forget`` drops it, to be opened anew;
  ``drop`` drops it for good, because the neighbour is lost.

**Relays.** A relayed chunk is stored whole, then put on the next lane. When that lane has sent it,
the hop before gets a ``Credit``. ``_held`` counts the chunks of each route that are here: a
neighbour that sends more than its window is refused. It counts by incarnation: a neighbour that
died and returned begins with a full window, and gets no credit for its earlier process's chunks.

**What must never happen.** A message for a lost neighbour stays queued: its exchange would never
end, so such a message ends as if it had been sent. ``routes`` leads to a dropped lane. A relayed
chunk ends without giving its credit back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from anabranch.exchange.actions import Send
from anabranch.exchange.arithmetic import payload_without_numbers
from anabranch.exchange.terms import MOST_BLOCK_BYTES, has_numbers
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import ChunkMessage, Credit, Message, Stamp
from anabranch.net.network import Connection
from anabranch.plan import Auxiliary
from anabranch.site._lane import Lane, Path, end
from anabranch.site._multipath import Fork
from anabranch.site.neighbourhood import DataPlaneConfig, Neighbourhood

Put = Callable[[Send], None]


class Lanes:
    """One site's lanes, by neighbour, each opened when it is first needed.

    Args:
        config: the data plane's configuration.
        neighbourhood: the state of the neighbours; messages to a lost one end at once.
        connect: makes a connection, given a neighbour, its incarnation and the strand's index.
        ended: called with a neighbour, its incarnation and the error that ended the lane to it.
        progressed: called each time a message has ended, sent or not; or None.
        stamp: makes the stamp of a chunk that leaves, see :class:`Lane`; None for no stamps.

    Attributes:
        progressed: see above.
        routes: by path, the function that takes this site's messages on it.
    """

    def __init__(
        self,
        config: DataPlaneConfig,
        neighbourhood: Neighbourhood,
        connect: Callable[[int, int, int], Awaitable[Connection]],
        ended: Callable[[int, int, Exception], None],
        progressed: Callable[[], None] | None,
        stamp: Callable[[bool], Stamp] | None,
    ) -> None:
        self._config = config
        self._neighbourhood = neighbourhood
        self._connect = connect
        self._ended = ended
        self.progressed = progressed
        self._stamp = stamp
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, Lane] = {}
        self._forks: dict[tuple[int, int], Fork] = {}  # by (this site, target)
        self.routes = _Routes(self._route)
        self._sent_bytes: Counter[int] = Counter()  # on forgotten lanes, by neighbour

    def lane(self, target: int) -> Lane:
        """Return the lane to a neighbour, opened now if there is none."""
        if target not in self._lanes:
            name, incarnation = self._config.name, self._neighbourhood.incarnations[target]
            self._lanes[target] = Lane(
                self._config.site,
                f"lane {name(self._config.site)} -> {name(target)}",
                partial(self._connect, target, incarnation),
                self._neighbourhood.window(self._config.site, target),
                partial(self._ended, target, incarnation),
                self.progressed,
                self._config.strands,
                self._stamp,
            )
        return self._lanes[target]

    def put(self, send: Send) -> None:
        """Put a message on the next lane of its path, bypassing any fork."""
        path = send.message.path
        to = path[path.index(self._config.site) + 1]
        if to in self._neighbourhood.lost:
            # Its exchange counts it, and must not wait for it. Not at once: `end` may end the
            # exchange while later messages of the same list of actions are not queued yet.
            self._loop.call_soon(end, send, self.progressed)
        else:
            self.lane(to).put(send)

    def post(self, target: int, message: Message) -> None:
        """Send a message without payload to a neighbour, bypassing the queue; open its lane."""
        self.lane(target).post(message)

    def say(self, target: int, message: Message) -> None:
        """Like ``post``, but keep the message while the lane is being opened."""
        self.lane(target).say(message)

    def sent_bytes(self) -> dict[int, int]:
        """Return the payload bytes sent so far to each neighbour."""
        sent = self._sent_bytes.copy()
        for target, lane in self._lanes.items():
            sent[target] += lane.payload_bytes
        return dict(sent)

    # --- paths

    def _route(self, path: Path) -> Put:
        fork = self._fork(path)
        if fork is not None:
            return partial(self._divide, fork)
        to = path[path.index(self._config.site) + 1]
        return self.put if to in self._neighbourhood.lost else self.lane(to).put

    def _fork(self, path: Path) -> Fork | None:
        """Return the fork for a path that begins here; None where it has no alternative."""
        return self._forks.get((path[0], path[-1]))

    def _divide(self, fork: Fork, send: Send) -> None:
        send.then = self._has_left_fork
        self._put_all(fork.add(send))

    def _has_left_fork(self, send: Send) -> None:
        path = send.message.path
        self._put_all(self._forks[path[0], path[-1]].sent(send.message))

    def _put_all(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self.put(send)

    def use_auxiliary(self, paths: Mapping[tuple[int, int], tuple[Path, ...]]) -> None:
        """Replace all auxiliary paths, by (source, target), for chunks not bound to a path yet."""
        bounds = self._config.auxiliary or Auxiliary()
        for source, target in paths:
            if source == self._config.site and (source, target) not in self._forks:
                self._forks[source, target] = Fork(
                    bounds.busy_from,
                    bounds.auxiliary_queue_length,
                    waits=bounds.when_full == "wait",
                )
        self.routes.clear()
        for ends, fork in self._forks.items():
            self._put_all(fork.use(paths.get(ends, ())))

    def check_auxiliary(self, paths: Mapping[tuple[int, int], tuple[Path, ...]]) -> None:
        """Check that these paths exist.

        Raises:
            OutOfPlaceMessage: one passes a site twice, or has a hop without a link.
        """
        for several in paths.values():
            for path in several:
                linked = all(self._config.overlay.link(*hop) is not None for hop in pairwise(path))
                if not linked or len(set(path)) != len(path):
                    raise OutOfPlaceMessage(
                        f"auxiliary path {path} passes a site twice, or has a hop without a link"
                    )

    def credit(self, sender: int, path: Path) -> None:
        """Note that a neighbour has relayed a chunk of this route.

        Raises:
            OutOfPlaceMessage: it is no relay of this route, or has no chunk of it from this site.
        """
        site = self._config.site
        if (site, sender) not in pairwise(path[:-1]):
            raise OutOfPlaceMessage(
                f"a credit for path {path}, on which site {sender} does not relay for site {site}"
            )
        self.lane(sender).credit(path)
        if path[0] == site:
            self._credited(path)

    def _credited(self, path: Path) -> None:
        fork = self._fork(path)
        if fork is not None:
            self._put_all(fork.credited(path))

    # --- messages that are not sent

    def withdraw(self, exchange: int) -> None:
        """End this site's own messages of an exchange that have not begun to leave."""
        for fork in self._forks.values():
            for send in fork.withdraw(exchange):
                send.then = None  # the fork has bound it to no path, and counts it on none
                end(send, self.progressed)
        for lane in [*self._lanes.values()]:  # a copy: chunks that a fork binds now may open a lane
            for send in lane.withdraw(exchange):
                end(send, self.progressed)
                path = send.message.path
                if send.message.is_aux and len(path) > 2:
                    self._credited(path)

    def withdraw_letter(self, neighbour: int) -> list[int]:
        """End the chunks of the letter to a neighbour that have not begun to leave; return them."""
        lane = self._lanes.get(neighbour)
        if lane is None:
            return []
        withdrawn = lane.withdraw_letters()
        for send in withdrawn:
            end(send, self.progressed)
        return [send.message.chunk for send in withdrawn]

    def drop(self, neighbour: int) -> None:
        """Close the lane to a lost neighbour; its messages end as if they had been sent."""
        self.routes.clear()
        if neighbour in self._lanes:
            self._lanes[neighbour].drop()

    def forget(self, neighbour: int) -> bool:
        """Close the lane to a neighbour; the next message opens a new one.

        Returns:
            Whether there was a lane.
        """
        self.routes.clear()
        lane = self._lanes.pop(neighbour, None)
        if lane is None:
            return False
        self._sent_bytes[neighbour] += lane.payload_bytes
        lane.drop()
        return True

    def close(self) -> None:
        """Close every lane."""
        for lane in self._lanes.values():
            lane.close()


class _Routes(dict[Path, Put]):
    """By path, the function that takes its messages; found at a path's first message."""

    def __init__(self, find: Callable[[Path], Put]) -> None:
        self._find = find

    def __missing__(self, path: Path) -> Put:
        put = self[path] = self._find(path)
        return put


class Relays:
    """The chunks that this site passes on from one neighbour to another, bounded by credit.

    Args:
        config: the data plane's configuration.
        neighbourhood: the state of the neighbours.
        put: puts a message on the next lane of its path.
        answer: sends a message to a neighbour, on the connection of its lane to this site.
    """

    def __init__(
        self,
        config: DataPlaneConfig,
        neighbourhood: Neighbourhood,
        put: Put,
        answer: Callable[[int, Message], None],
    ) -> None:
        self._config = config
        self._neighbourhood = neighbourhood
        self._put = put
        self._answer = answer
        self._held: Counter[tuple[Path, int]] = Counter()  # chunks by (route, incarnation)

    def receive(self, sender: int, message: ChunkMessage, payload_bytes: int, to: int) -> Sink:
        """Return where a chunk goes that this site must pass on to the site ``to``.

        Raises:
            OutOfPlaceMessage: there is no link to it; or the sender has no credit left.
        """
        config = self._config
        if config.overlay.link(config.site, to) is None:
            raise OutOfPlaceMessage(
                f"path {message.path} goes on to site {to}, but no link leads there"
            )
        most_bytes = 4 * config.most_chunk_elements + MOST_BLOCK_BYTES
        if not 0 < payload_bytes <= most_bytes:
            raise OutOfPlaceMessage(
                f"a chunk to relay has {payload_bytes} bytes, must have 1 to {most_bytes}"
            )
        incarnation = self._neighbourhood.incarnations[sender]
        held = message.path, incarnation
        if self._held[held] >= self._neighbourhood.window(sender, config.site):
            raise OutOfPlaceMessage(f"more chunks for {message.path} than the relay window allows")
        self._held[held] += 1
        target: memoryview | None = None
        if has_numbers(message.terms):
            payload = target = memoryview(np.empty(payload_bytes, np.uint8).data)
        else:
            payload = payload_without_numbers(payload_bytes)
        relayed = Send(message, payload, then=partial(self._give_credit, sender, incarnation))
        return Sink(target, done=partial(self._put, relayed))

    def _give_credit(self, sender: int, incarnation: int, relayed: Send) -> None:
        """Tell the hop before that a chunk has been passed on, unless it is another process now."""
        path = relayed.message.path
        held = path, incarnation
        self._held[held] -= 1
        if not self._held[held]:
            del self._held[held]
        if not self._neighbourhood.is_earlier(sender, incarnation):
            self._answer(sender, Credit(path))
