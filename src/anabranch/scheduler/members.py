"""Who takes part. Pure: no I/O, no clock."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence

from anabranch.net.errors import OutOfPlaceMessage, UnauthorisedPeer
from anabranch.net.messages import WIRE_VERSION, Join
from anabranch.overlay import Overlay, OverlayError


class Members:
    """The sites of an overlay, and which of them have joined.

    Args:
        overlay: whose sites may join, each once.
        token: what a site must know to join.
    """

    def __init__(self, overlay: Overlay, token: str) -> None:
        self._overlay = overlay
        self._token = token
        self._addresses: dict[int, tuple[str, int]] = {}
        self._incarnations = [0] * overlay.size

    def admit(self, join: Join, gone: Collection[int] = ()) -> int:
        """Take a site in; return its index.

        Args:
            join: what it says.
            gone: sites that have joined and are no longer there: each may join again.

        Raises:
            UnauthorisedPeer: a wrong token, an unknown name, or one that has joined already.
            OutOfPlaceMessage: another wire version.
        """
        if not self.knows(join.token):
            raise UnauthorisedPeer(f"site {join.name!r} does not know the run's token")
        if join.wire_version != WIRE_VERSION:
            raise OutOfPlaceMessage(
                f"site {join.name!r} speaks wire version {join.wire_version}, the scheduler "
                f"{WIRE_VERSION}; run the same release of anabranch everywhere"
            )
        try:
            site = self._overlay.index(join.name)
        except OverlayError as error:
            raise UnauthorisedPeer(str(error)) from None
        if site in self._addresses:
            if site not in gone:
                raise UnauthorisedPeer(f"site {join.name!r} has joined already")
            self._incarnations[site] += 1
        self._addresses[site] = join.host, join.port
        return site

    def knows(self, token: str) -> bool:
        """Return whether this is the run's token."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    @property
    def missing(self) -> Sequence[int]:
        """The sites that have not joined yet."""
        return [i for i in range(self._overlay.size) if i not in self._addresses]

    def address(self, site: int) -> tuple[str, int]:
        """Return where a site takes lanes that has joined."""
        return self._addresses[site]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where each site takes lanes, by index; once nobody is missing."""
        return tuple(self._addresses[i] for i in range(self._overlay.size))

    @property
    def incarnations(self) -> tuple[int, ...]:
        """How many times each site has joined again, by index."""
        return tuple(self._incarnations)
