"""The state of a site's neighbours: their addresses, incarnations, losses and silences.

A neighbour that died may return as another process, a later *incarnation*. A neighbour is *lost*
from the end of its lane, or the cut of its link, until it returns. It is *silent* while any
connection of its lane has received nothing for unusually long.
:mod:`anabranch.site._dataplane` decides when these change; this module remembers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.net.addresses import takes_calls
from anabranch.net.errors import UnauthorisedPeer
from anabranch.net.frames import Limits
from anabranch.net.identity import derive, is_proven
from anabranch.net.messages import Hello, Offer, PipeRequest
from anabranch.net.network import Address, Connection
from anabranch.net.tls import check_identity, identity_of
from anabranch.overlay import Overlay
from anabranch.plan import Auxiliary
from anabranch.site._lane import relay_window

MOST_CHUNK_ELEMENTS = 1 << 26
LIMITS = Limits(message_bytes=1 << 16, payload_bytes=4 * MOST_CHUNK_ELEMENTS)


@dataclass(frozen=True, slots=True)
class DataPlaneConfig:
    """The configuration of a data plane: this site's identity, and what all sites agree on.

    Args:
        site: this site's index.
        overlay: sites and links; sites connect only along its links.
        addresses: (host, port) of this site and of its neighbours, by index. Sites that take no
            connections have a special address, see :mod:`anabranch.net.addresses`.
        incarnations: of the same sites, by index, see :class:`anabranch.net.messages.Welcome`.
        secret: this site's secret, see :mod:`anabranch.net.identity`.
        lane_secrets: the secrets of its lanes, by the neighbour.
        chunk_elements: the usual elements of a chunk, from which relay windows are computed.
        most_chunk_elements: the most elements of any chunk.
        room_elements: the most elements of data that arrives before its exchange has begun here.
        strands: the number of connections of each lane.
        least_relayed_bytes: how much of one route a relay holds at least.
        auxiliary: the bounds of primary and auxiliary paths; None for the defaults.
        stamped: whether chunks carry the stamps that measure links.
        repairs: whether an exchange that loses a lane waits for a repair, instead of failing.
    """

    site: int
    overlay: Overlay
    addresses: Mapping[int, Address]
    incarnations: Mapping[int, int]
    secret: bytes
    lane_secrets: Mapping[int, bytes]
    chunk_elements: int
    most_chunk_elements: int
    room_elements: int
    strands: int = 1
    least_relayed_bytes: int = 0
    auxiliary: Auxiliary | None = None
    stamped: bool = False
    repairs: bool = False

    def __post_init__(self) -> None:
        least, most = self.chunk_elements, self.most_chunk_elements
        if not 1 <= least <= most <= MOST_CHUNK_ELEMENTS:
            raise ValueError(
                f"chunks have {least} to {most} elements, must be in 1..{MOST_CHUNK_ELEMENTS}"
            )

    def name(self, site: int) -> str:
        """Return a site's index and name, for error messages."""
        return f"site {site} ({self.overlay.sites[site].name})"


class Neighbourhood:
    """The present state of one site's neighbours.

    Args:
        config: the data plane's configuration.

    Attributes:
        addresses, incarnations: of this site and its neighbours, by index.
        lost: the lost neighbours.
    """

    def __init__(self, config: DataPlaneConfig) -> None:
        self._config = config
        self.addresses, self.incarnations = {**config.addresses}, {**config.incarnations}
        self.lost: set[int] = set()
        self._silent: dict[int, set[Connection]] = {}  # silent connections, by neighbour

    def near(self) -> list[tuple[int, int]]:
        """Return the sites that this one has a link to, each with its incarnation."""
        site, overlay = self._config.site, self._config.overlay
        return [(each, self.incarnations[each]) for each in overlay.targets[site]]

    def that_are_lost(self) -> list[tuple[int, int]]:
        """Return the lost neighbours, each with its incarnation."""
        return [(site, self.incarnations[site]) for site in sorted(self.lost)]

    def that_may_pipe(self) -> list[int]:
        """See :class:`anabranch.site.control.Neighbours`.

        The order begins with the next higher index, so that sites spread over the neighbours.
        """
        near = [each for each, _ in self.near() if takes_calls(self.addresses[each])]
        there = [each for each in near if each not in self.lost and not self._silent.get(each)]
        site, size = self._config.site, self._config.overlay.size
        return sorted(there, key=lambda each: (each - site) % size)

    def is_earlier(self, neighbour: int, incarnation: int) -> bool:
        """Return whether a later incarnation of the neighbour is known."""
        return incarnation < self.incarnations[neighbour]

    def lose(self, neighbour: int) -> None:
        """Note that a neighbour is lost."""
        self.lost.add(neighbour)
        self._silent.pop(neighbour, None)

    def returned(self, neighbour: int, incarnation: int, address: Address) -> None:
        """Note a neighbour's new incarnation and address; it counts as lost until ``found``."""
        self.incarnations[neighbour], self.addresses[neighbour] = incarnation, address
        self.lose(neighbour)

    def found(self, neighbour: int) -> None:
        """Note that a neighbour can be reached again."""
        self.lost.discard(neighbour)

    def hear_silence(
        self, neighbour: int, incarnation: int, connection: Connection, is_silent: bool
    ) -> bool:
        """Note that a connection is silent, or no longer; return whether to report it.

        A silence is reported at each heartbeat while it lasts, and once at its end.
        """
        if neighbour in self.lost or self.is_earlier(neighbour, incarnation):
            return False
        silent = self._silent.setdefault(neighbour, set())
        was_silent = bool(silent)
        if is_silent:
            silent.add(connection)
        else:
            silent.discard(connection)
        return bool(silent) or was_silent

    def window(self, source: int, target: int) -> int:
        """Return how many chunks of one route ``source`` may have at the relay ``target``."""
        overlay = self._config.overlay
        there, back = overlay.link(source, target), overlay.link(target, source)
        assert there is not None  # plans are checked against the overlay, paths on arrival
        chunk_bytes = 4 * self._config.chunk_elements
        return relay_window(there, back, chunk_bytes, self._config.least_relayed_bytes)

    def check(
        self, hello: Hello | Offer | PipeRequest, connection: Connection, link: tuple[int, int]
    ) -> None:
        """Check a peer's identity, and that the overlay has the link that the connection serves.

        Raises:
            UnauthorisedPeer: the peer is not the site that it names, wants another site, has no
                link with this one, or is an earlier incarnation.
        """
        config = self._config
        if 0 <= hello.source < config.overlay.size:
            expected = identity_of(config.overlay.sites[hello.source].name)
            check_identity(connection.peer, connection.identity, expected)
        if not is_proven(hello, derive(config.secret, hello.source), connection.own_challenge):
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {hello.source} of this run, and does not prove "
                "it"
            )
        if hello.target != config.site:
            raise UnauthorisedPeer(
                f"{connection.peer} looks for site {hello.target}, this is site {config.site}"
            )
        if config.overlay.link(*link) is None:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {hello.source}, which has no link to this one"
            )
        if hello.incarnation != self.incarnations[hello.source]:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is incarnation {hello.incarnation} of site "
                f"{hello.source}, which is in incarnation {self.incarnations[hello.source]}"
            )
