"""What a site knows of the sites that it has links with: where they are, and which are there.

A neighbour is in its latest *incarnation*, as a site that died may come back as another process.
It is *lost* from when its lane ends, or its link is cut, until it returns; and *silent* while any
connection of its lane says nothing for unusually long. :mod:`anabranch.site._dataplane` says which
of these happens, here it is remembered.
"""

from __future__ import annotations

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
    """What every site of a run must agree on, and who this one is.

    Args:
        site: this site's index.
        overlay: sites and links; only along its links do sites connect.
        addresses: (host, port) of every site, by index; those of sites that take no connections
            say so, see :mod:`anabranch.net.addresses`.
        secret: this site's own, see :mod:`anabranch.net.identity`.
        lane_secrets: of its lanes to other sites, by their index.
        chunk_elements: of a chunk, as relays reckon how many may be on their way.
        most_chunk_elements: of any chunk.
        room_elements: of data that may come before its exchange has begun here.
        strands: connections of each lane.
        auxiliary: how many chunks paths take, and what those beyond do; None for the defaults.
        stamped: whether chunks carry what is needed to measure links.
        incarnations: of every site, by index, see :class:`anabranch.net.messages.Welcome`; all 0
            where left out.
        repairs: whether exchanges that lose a lane wait to be repaired, instead of failing.
    """

    site: int
    overlay: Overlay
    addresses: tuple[Address, ...]
    secret: bytes
    lane_secrets: tuple[bytes, ...]
    chunk_elements: int
    most_chunk_elements: int
    room_elements: int
    strands: int = 1
    auxiliary: Auxiliary | None = None
    stamped: bool = False
    incarnations: tuple[int, ...] = ()
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
    """The neighbours of one site, as they are now.

    Attributes:
        addresses, incarnations: of every site, by index.
        lost: neighbours whose lanes have ended.
    """

    def __init__(self, config: DataPlaneConfig) -> None:
        self._config = config
        self.addresses = [*config.addresses]
        self.incarnations: list[int] = [*(config.incarnations or [0] * config.overlay.size)]
        self.lost: set[int] = set()
        self._silent: dict[int, set[Connection]] = {}  # by neighbour: those that say nothing

    def near(self) -> list[tuple[int, int]]:
        """Return the sites that links join this one with, and which of their processes is known."""
        site, overlay = self._config.site, self._config.overlay
        linked = [each for each in range(overlay.size) if overlay.link(site, each)]
        return [(each, self.incarnations[each]) for each in linked]

    def that_are_lost(self) -> list[tuple[int, int]]:
        """Return the neighbours whose lanes have ended, and in which incarnation."""
        return [(site, self.incarnations[site]) for site in sorted(self.lost)]

    def that_may_pipe(self) -> list[int]:
        """See :class:`anabranch.site.control.Neighbours`; each site begins with another."""
        near = [each for each, _ in self.near() if takes_calls(self.addresses[each])]
        there = [each for each in near if each not in self.lost and not self._silent.get(each)]
        site, size = self._config.site, self._config.overlay.size
        return sorted(there, key=lambda each: (each - site) % size)

    def is_earlier(self, neighbour: int, incarnation: int) -> bool:
        """Return whether another process is there now."""
        return incarnation < self.incarnations[neighbour]

    def lose(self, neighbour: int) -> None:
        """Take note that nothing reaches a neighbour, or comes from it."""
        self.lost.add(neighbour)
        self._silent.pop(neighbour, None)

    def returned(self, neighbour: int, incarnation: int, address: Address) -> None:
        """Take note of another process of a neighbour, and where it is; it is lost until found."""
        self.incarnations[neighbour], self.addresses[neighbour] = incarnation, address
        self.lose(neighbour)

    def found(self, neighbour: int) -> None:
        """Take note that a neighbour can be reached again."""
        self.lost.discard(neighbour)

    def hear_silence(
        self, neighbour: int, incarnation: int, connection: Connection, is_silent: bool
    ) -> bool:
        """Take note that a connection is silent, or no longer; return whether that is news.

        It is with every heartbeat of a silence, and at its end.
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
        """Return how many chunks of one route the first may have at the second."""
        overlay = self._config.overlay
        there, back = overlay.link(source, target), overlay.link(target, source)
        assert there is not None  # plans are checked against the overlay, paths on arrival
        return relay_window(there, back, 4 * self._config.chunk_elements)

    def check(
        self, hello: Hello | Offer | PipeRequest, connection: Connection, link: tuple[int, int]
    ) -> None:
        """Check who speaks, and that the link is there that the connection is to stand for.

        Raises:
            UnauthorisedPeer: not a neighbour of this site.
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
