"""Makes, offers and accepts the connections of a site's lanes.

The site that sends on a lane makes its connections. If the other end takes none, for example behind
NAT, that end makes them and offers them (:mod:`anabranch.site._offers`). The first message on each
connection names its sender, and proves the sender's identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from anabranch.net.addresses import takes_calls
from anabranch.net.deadline import within
from anabranch.net.errors import NetError, PeerError, UnauthorisedPeer
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.identity import proven
from anabranch.net.messages import AnyMessage, Hello, Message, Offer, PipeRequest
from anabranch.net.network import Connection, Network, Receiver
from anabranch.net.pipe import End
from anabranch.net.tls import TlsError, connect_to, identity_of
from anabranch.site._offers import Offering, Offers
from anabranch.site.neighbourhood import DataPlaneConfig, Neighbourhood

MOST_STRANDS = 16
_PROBE_S = 3.0  # a neighbour that does not answer a probe in this time counts as unreachable


class OfferedReceiver(Receiver, Protocol):
    """The receiver of a connection that this site makes and offers.

    Attributes:
        connection: the connection; set once it is made.
        taken: True once the neighbour's lane has taken it, False if it is closed before that.
    """

    connection: Connection | None
    taken: asyncio.Future[bool]


class Connections:
    """One site's connections from and to its neighbours; see also ``control.Neighbours``.

    Args:
        network: connects to the neighbours.
        config: the data plane's configuration.
        neighbourhood: the state of the neighbours.
        answers: makes the receiver of answers on the lane to a neighbour, given the neighbour and
            its incarnation.
        offered: makes the receiver of a connection that this site offers to a neighbour.
        silent: called with a neighbour, its incarnation, and whether it is unusually silent.
    """

    def __init__(
        self,
        network: Network,
        config: DataPlaneConfig,
        neighbourhood: Neighbourhood,
        answers: Callable[[int, int], Receiver],
        offered: Callable[[int], OfferedReceiver],
        silent: Callable[[int, int, bool], None],
    ) -> None:
        self._network = network
        self._config = config
        self._neighbourhood = neighbourhood
        self._answers = answers
        self._offered = offered
        self._silent = silent
        self._inbound: dict[int, dict[int, Connection]] = {}  # by neighbour and strand
        self._offers = Offers()  # of neighbours that take no connections
        self._offering = Offering()  # where this site takes none
        self._has_begun = False

    # --- that this site makes

    async def make(self, target: int, incarnation: int, strand: int) -> Connection:
        """Return a connection for a strand of this site's lane to a neighbour.

        Raises:
            NetError: there is none.
        """
        address = self._neighbourhood.addresses[target]
        if takes_calls(address):
            connection = await self._call(target, self._answers(target, incarnation))
        else:
            offered = await self._offers.take(target, strand)
            connection = self._network.adopt(offered, address)
        await self._introduce(connection, Hello, target, strand)
        self._watch(connection, target, incarnation)
        return connection

    async def _call(self, target: int, receiver: Receiver) -> Connection:
        identity = identity_of(self._config.overlay.sites[target].name)
        address = self._neighbourhood.addresses[target]
        return await connect_to(self._network, address, receiver, identity)

    async def _introduce(
        self, connection: Connection, how: type[Hello | Offer], target: int, strand: int
    ) -> None:
        """Send the first message: this site's identity, and the connection's purpose."""
        config = self._config
        incarnation = self._neighbourhood.incarnations[config.site]
        said = how(b"", config.site, target, strand, config.strands, incarnation)
        secret = config.lane_secrets[target]
        await connection.send(proven(said, secret, connection.their_challenge))

    def _watch(self, connection: Connection, neighbour: int, incarnation: int) -> None:
        """Report when a neighbour is silent on any connection of a lane."""

        def told(is_silent: bool) -> None:
            known = self._neighbourhood
            if known.hear_silence(neighbour, incarnation, connection, is_silent):
                self._silent(neighbour, incarnation, is_silent)

        connection.tell_silence(told)

    # --- that this site offers, where it takes none

    def begin(self) -> None:
        """Begin to offer connections: all sites are ready for lanes."""
        self._has_begun = True
        for neighbour in self._config.overlay.sources[self._config.site]:
            self.offer(neighbour)

    def offer(self, neighbour: int) -> None:
        """Offer a neighbour the connections for its lane here, if it cannot make them itself."""
        config, known = self._config, self._neighbourhood
        needs_them = self._has_begun and not takes_calls(known.addresses[config.site])
        is_there = takes_calls(known.addresses[neighbour]) and neighbour not in known.lost
        if needs_them and is_there and config.overlay.link(neighbour, config.site) is not None:
            strands = range(config.strands)
            offers = (partial(self._offer_strand, neighbour, strand) for strand in strands)
            self._offering.keep(neighbour, *offers)

    async def _offer_strand(
        self, neighbour: int, strand: int
    ) -> tuple[Connection, asyncio.Future[bool]]:
        receiver = self._offered(neighbour)
        connection = receiver.connection = await self._call(neighbour, receiver)
        await self._introduce(connection, Offer, neighbour, strand)
        return connection, receiver.taken

    # --- that neighbours make

    def admit(self, hello: Hello, connection: Connection, replaces: bool) -> int:
        """Check a Hello; return the neighbour that it comes from.

        Args:
            hello: the message.
            connection: the connection that it arrived on.
            replaces: whether the connection may replace an earlier one of the same strand.

        Raises:
            UnauthorisedPeer: the sender is no neighbour, or has this strand already.
        """
        self._neighbourhood.check(hello, connection, (hello.source, self._config.site))
        _check_strand(hello, connection)
        strands = self._inbound.setdefault(hello.source, {})
        if hello.strand in strands:
            if not replaces:
                raise _not_a_strand(hello, connection)
            strands[hello.strand].close()  # broken; only the neighbour has noticed so far
        strands[hello.strand] = connection
        self._watch(connection, hello.source, hello.incarnation)
        return hello.source

    def take_offer(self, offer: Offer, connection: Connection) -> Receiver:
        """Keep an offer; return the receiver of the answers to this site's lane on it.

        Raises:
            UnauthorisedPeer: the sender is no neighbour, or has offered this strand already.
        """
        self._neighbourhood.check(offer, connection, (self._config.site, offer.source))
        _check_strand(offer, connection)
        if not self._offers.add(offer.source, offer.strand, connection):
            raise _not_a_strand(offer, connection)
        return self._answers(offer.source, offer.incarnation)

    def check_pipe(self, request: PipeRequest, connection: Connection) -> None:
        """Check the sender of a request for a pipe to the scheduler.

        Raises:
            UnauthorisedPeer: the sender is no neighbour of this site.
        """
        self._neighbourhood.check(request, connection, (request.source, self._config.site))

    def withdrawn(self, neighbour: int, connection: Connection) -> bool:
        """Note that a connection has ended; return whether it was an offer not taken yet."""
        return self._offers.forget(neighbour, connection)

    def answer(self, neighbour: int, message: Message) -> None:
        """Send a message on a neighbour's lane to this site, if there is one, on any strand."""
        for connection in self._inbound.get(neighbour, {}).values():
            connection.post(message)
            break

    # --- that end

    def drop_offers(self, neighbour: int) -> None:
        """Drop a neighbour's offers, and this site's offers to it."""
        self._offers.drop(neighbour)
        self._offering.withdraw(neighbour)

    def close_inbound(self, neighbour: int) -> None:
        """Close a neighbour's lane to this site; no other takes its place until it returns."""
        for connection in self._inbound.get(neighbour, {}).values():
            connection.close()

    def returned(self, neighbour: int, is_another: bool) -> None:
        """Accept a new lane from a neighbour that has returned.

        Args:
            neighbour: the neighbour.
            is_another: whether it is another process, which did not make the earlier offers.
        """
        if is_another:
            self._offers.drop(neighbour)
        self._offering.withdraw(neighbour)
        self.close_inbound(neighbour)
        self._inbound.pop(neighbour, None)

    def close(self) -> None:
        """Close all."""
        for neighbour in self._inbound:
            self.close_inbound(neighbour)
        self._offers.close()
        self._offering.close()

    # --- beside lanes

    def name(self, neighbour: int) -> str:
        """See :class:`anabranch.site.control.Neighbours`."""
        return self._config.name(neighbour)

    def that_may_pipe(self) -> list[int]:
        """See :class:`anabranch.site.control.Neighbours`."""
        return self._neighbourhood.that_may_pipe()

    async def ask_for_pipe(self, neighbour: int, end: End) -> Connection:
        """See :class:`anabranch.site.control.Neighbours`."""
        connection = await self._call(neighbour, end)
        site, secret = self._config.site, self._config.lane_secrets[neighbour]
        request = PipeRequest(b"", site, neighbour, self._neighbourhood.incarnations[site])
        connection.post(proven(request, secret, connection.their_challenge))
        return connection

    async def reaches(self, neighbour: int) -> bool:
        """Return whether a neighbour answers, on a new connection.

        A neighbour that takes no connections tests the other direction itself, so it counts as
        answering if this site takes connections.
        """
        addresses = self._neighbourhood.addresses
        if not takes_calls(addresses[neighbour]):
            return takes_calls(addresses[self._config.site])
        try:
            async with within(_PROBE_S):
                connection = await self._network.connect(addresses[neighbour], _Probing())
        except (NetError, TlsError, TimeoutError):
            return False
        connection.close()
        return True


def _check_strand(hello: Hello | Offer, connection: Connection) -> None:
    if not 0 <= hello.strand < hello.strands <= MOST_STRANDS:
        raise _not_a_strand(hello, connection)


def _not_a_strand(hello: Hello | Offer, connection: Connection) -> UnauthorisedPeer:
    return UnauthorisedPeer(
        f"{connection.peer} says it is strand {hello.strand} of {hello.strands} of site "
        f"{hello.source}, which is connected already or cannot be"
    )


class _Probing:
    """The receiver of a connection that is only made as a test."""

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        pass

    def on_closed(self, error: Exception | None) -> None:
        pass
