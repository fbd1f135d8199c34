"""A site's lanes to its neighbours, the paths that chunks take over them, and what it relays.

A message takes the lane to the next site of its path. Where a chunk may take several paths, a
:class:`Fork` binds it to one first. What a path leads to is looked up once and remembered, until a
lane or a fork changes.
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
from anabranch.exchange.terms import has_numbers
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
        config: who this site is.
        neighbourhood: who its neighbours are; a lost one is sent nothing.
        connect: makes a connection to a neighbour, in an incarnation, for a strand.
        ended: told of a neighbour, its incarnation and the error that ended the lane to it.
        progressed: called with each message that has been sent, or never will be; or None.
        stamp: makes the stamp of a chunk that leaves; None for none.

    Attributes:
        progressed: see above.
        routes: what takes a message that this site sends over a path.
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
        self._forks: dict[tuple[int, int], Fork] = {}  # where chunks may take several paths
        self.routes = _Routes(self._route)
        self._sent_bytes: Counter[int] = Counter()  # on lanes that are no more, by neighbour

    def lane(self, target: int) -> Lane:
        """Return the lane to a neighbour; open it if there is none."""
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
        """Send a message on along its path; it is bound to that already."""
        path = send.message.path
        to = path[path.index(self._config.site) + 1]
        if to in self._neighbourhood.lost:
            # Nothing there takes it; what counts it goes on as if it had been sent.
            self._loop.call_soon(end, send, self.progressed)
        else:
            self.lane(to).put(send)

    def post(self, target: int, message: Message) -> None:
        """Send a message without payload to a neighbour, beside the queue; opens its lane."""
        self.lane(target).post(message)

    def say(self, target: int, message: Message) -> None:
        """Like ``post``, but not lost while the lane is being opened."""
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
        """Return what chooses between this path, which begins here, and others; None: nothing."""
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
        """Let chunks take these paths, by (source, target), from now on, and no other ones."""
        bounds = self._config.auxiliary or Auxiliary()
        for source, target in paths:
            if source == self._config.site and (source, target) not in self._forks:
                self._forks[source, target] = Fork(
                    bounds.primary_busy_bound,
                    bounds.auxiliary_queue_length,
                    waits=bounds.when_full == "wait",
                )
        self.routes.clear()
        for ends, fork in self._forks.items():
            self._put_all(fork.use(paths.get(ends, ())))

    def check_auxiliary(self, paths: Mapping[tuple[int, int], tuple[Path, ...]]) -> None:
        """Check that these paths can be used.

        Raises:
            OutOfPlaceMessage: one passes a site twice, or where no link is.
        """
        for several in paths.values():
            for path in several:
                linked = all(self._config.overlay.link(*hop) is not None for hop in pairwise(path))
                if not linked or len(set(path)) != len(path):
                    raise OutOfPlaceMessage(f"auxiliary path {path} is no path over links")

    def credit(self, sender: int, path: Path) -> None:
        """Take note that a neighbour has relayed a chunk of this route.

        Raises:
            OutOfPlaceMessage: it does not relay for this site, or has none of its chunks.
        """
        site = self._config.site
        if (site, sender) not in pairwise(path[:-1]):
            raise OutOfPlaceMessage(f"a credit for {path}, on which it does not relay for us")
        self.lane(sender).credit(path)
        if path[0] == site:
            self._credited(path)

    def _credited(self, path: Path) -> None:
        fork = self._fork(path)
        if fork is not None:
            self._put_all(fork.credited(path))

    # --- what is not sent

    def withdraw(self, exchange: int) -> None:
        """Forget what this site says of an exchange and has not begun to send."""
        for fork in self._forks.values():
            fork.withdraw(exchange)
        for lane in [*self._lanes.values()]:  # what goes instead may open another
            for send in lane.withdraw(exchange):
                end(send, self.progressed)
                path = send.message.path
                if send.message.is_aux and len(path) > 2:
                    self._credited(path)

    def withdraw_letter(self, neighbour: int) -> list[int]:
        """Return the chunks of the letter to a neighbour that are not sent, and never will be."""
        lane = self._lanes.get(neighbour)
        if lane is None:
            return []
        withdrawn = lane.withdraw_letters()
        for send in withdrawn:
            end(send, self.progressed)
        return [send.message.chunk for send in withdrawn]

    def drop(self, neighbour: int) -> None:
        """Close the lane to a neighbour that is lost; what waits there ends as if it were sent."""
        self.routes.clear()
        if neighbour in self._lanes:
            self._lanes[neighbour].drop()

    def forget(self, neighbour: int) -> bool:
        """Close the lane to a neighbour, which is made anew when it is needed again.

        Returns:
            Whether there was one.
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
    """What takes a message, by its path; found when a path is first taken."""

    def __init__(self, find: Callable[[Path], Put]) -> None:
        self._find = find

    def __missing__(self, path: Path) -> Put:
        put = self[path] = self._find(path)
        return put


class Relays:
    """What this site passes on between two neighbours, bounded by credit.

    Args:
        config: who this site is.
        neighbourhood: who its neighbours are.
        put: sends a message on.
        answer: says something on a neighbour's lane to this site.
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
        self._held: Counter[tuple[Path, int]] = Counter()  # by route and sender's incarnation

    def receive(self, sender: int, message: ChunkMessage, payload_bytes: int, to: int) -> Sink:
        """Return where a chunk goes that is to be passed on to a neighbour.

        Raises:
            OutOfPlaceMessage: there is no link to it, or more has come than credit allows.
        """
        config = self._config
        if config.overlay.link(config.site, to) is None:
            raise OutOfPlaceMessage(f"path {message.path} goes on to site {to}, but no link does")
        if not 0 < payload_bytes <= 4 * config.most_chunk_elements:
            raise OutOfPlaceMessage(f"a chunk to relay has {payload_bytes} bytes")
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
        """Tell the hop before that a chunk has been passed on."""
        path = relayed.message.path
        held = path, incarnation
        self._held[held] -= 1
        if not self._held[held]:
            del self._held[held]
        if not self._neighbourhood.is_earlier(sender, incarnation):
            self._answer(sender, Credit(path))
