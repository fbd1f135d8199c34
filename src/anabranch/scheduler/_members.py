"""Admits joining sites, and keeps their addresses and secrets. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from anabranch.net.addresses import OUTBOUND_ONLY, is_loopback
from anabranch.net.errors import UnauthorisedPeer
from anabranch.net.identity import derive, is_proven
from anabranch.net.messages import Join, Resume, StatusRequest
from anabranch.overlay import Overlay, OverlayError

T = TypeVar("T")

ABSENT = ("", 0)
"""The address of a site that has not joined."""


class Members:
    """The sites of an overlay, and which of them have joined.

    Args:
        overlay: the network; each of its sites may join once.
        token: the shared secret that a site must prove to know.
        secret: the run's secret, from which the sites' secrets are derived.

    Attributes:
        addresses: where each site takes lanes, by index; ``ABSENT`` before it has joined.
        incarnations: how many times each site has joined again, by index.
    """

    def __init__(self, overlay: Overlay, token: str, secret: bytes) -> None:
        self._overlay = overlay
        self._token = token.encode()
        self._secret = secret
        self.addresses: tuple[tuple[str, int], ...] = (ABSENT,) * overlay.size
        self.incarnations = (0,) * overlay.size
        self._elsewhere: set[int] = set()  # on other machines than this one

    def admit(
        self,
        join: Join,
        challenge: bytes,
        gone: Collection[int] = (),
        goes_round: bool = True,
        is_elsewhere: bool = False,
    ) -> int:
        """Admit a site; return its index.

        Args:
            join: the site's message.
            challenge: this end's challenge on the connection.
            gone: sites that joined before and are lost: each may join again.
            goes_round: whether plans avoid links between two sites that take no connections.
            is_elsewhere: whether the site is on another machine than this one.

        Raises:
            UnauthorisedPeer: a wrong token, an unknown name, one that has joined already, or a site
                that a neighbour cannot connect to.
        """
        if not is_proven(join, self._token, challenge):
            raise UnauthorisedPeer(
                f"site {join.name!r} does not know the run's token; give it the scheduler's, as "
                "$ANABRANCH_TOKEN"
            )
        try:
            site = self._overlay.index(join.name)
        except OverlayError as error:
            raise UnauthorisedPeer(str(error)) from None
        if not join.host and not goes_round and (near := self._calling_neighbours(site)):
            other = self._overlay.sites[near[0]].name
            raise UnauthorisedPeer(
                f"site {join.name!r} takes no connections, and neither does {other!r}; leave the "
                "links between them out of the overlay, or let one take connections"
            )
        self._check_is_found(site, join.host, is_elsewhere, gone)
        if self._has_joined(site):
            if site not in gone:
                raise UnauthorisedPeer(
                    f"site {join.name!r} has joined already; if its process has died, try again in "
                    "some seconds"
                )
            self.incarnations = _with(self.incarnations, site, self.incarnations[site] + 1)
        if is_elsewhere:
            self._elsewhere.add(site)
        else:
            self._elsewhere.discard(site)
        takes_calls = bool(join.host)
        address = (join.host, join.port) if takes_calls else (OUTBOUND_ONLY, site)
        self.addresses = _with(self.addresses, site, address)
        return site

    def _check_is_found(
        self, site: int, host: str, is_elsewhere: bool, gone: Collection[int]
    ) -> None:
        """Check that no site on another machine has a link with a site that listens on loopback."""
        here = self._overlay.sites[site].name
        for other in self._overlay.neighbours[site]:
            if other in gone or not self._has_joined(other):
                continue
            its_host, _ = self.addresses[other]
            there = self._overlay.sites[other].name
            if is_elsewhere and is_loopback(its_host):
                hidden, host, remote = there, its_host, here
            elif other in self._elsewhere and is_loopback(host):
                hidden, remote = here, there
            else:
                continue
            raise UnauthorisedPeer(
                f"site {hidden!r} is found at {host} by its own machine alone, and site {remote!r} "
                f"is on another; let {hidden!r} join by an address of the scheduler that "
                f"{remote!r} can use, too, or say at which host others find it"
            )

    def knows_token(self, request: Join | StatusRequest, challenge: bytes) -> bool:
        """Return whether a request comes from a process that knows the run's token."""
        return is_proven(request, self._token, challenge)

    def restore(self, addresses: Sequence[tuple[str, int]], incarnations: Sequence[int]) -> None:
        """Restore the sites that had joined before a restart of the scheduler."""
        self.addresses = (*addresses,)
        self.incarnations = (*incarnations,)

    def forget(self, site: int) -> None:
        """Forget a site that joined and ended while others were still awaited."""
        self.addresses = _with(self.addresses, site, ABSENT)

    def is_here(self, resume: Resume, challenge: bytes) -> bool:
        """Return whether a request comes from the present process of a site that has joined."""
        return (
            0 <= resume.site < self._overlay.size
            and self._has_joined(resume.site)
            and resume.incarnation == self.incarnations[resume.site]
            and self.is_of_site(resume, challenge)
        )

    def is_of_site(self, resume: Resume, challenge: bytes) -> bool:
        """Return whether a request comes from any process of the site, present or past."""
        return is_proven(resume, self.secret(resume.site), challenge)

    def secret(self, site: int) -> bytes:
        """Return the secret of a site."""
        return derive(self._secret, site)

    def lane_secrets(self, site: int) -> dict[int, bytes]:
        """Return the secrets with which a site opens lanes to its neighbours, by their index."""
        return {other: derive(self.secret(other), site) for other in self._overlay.neighbours[site]}

    def _has_joined(self, site: int) -> bool:
        return self.addresses[site] != ABSENT

    @property
    def out_of_reach(self) -> frozenset[tuple[int, int]]:
        """The links between sites that have joined, neither of which takes connections."""
        pairs = (
            pair
            for site in range(self._overlay.size)
            if self._calls_only(site)
            for other in self._calling_neighbours(site)
            for pair in ((site, other), (other, site))
        )
        return frozenset(pair for pair in pairs if self._overlay.link(*pair))

    def _calling_neighbours(self, site: int) -> list[int]:
        return [each for each in self._overlay.neighbours[site] if self._calls_only(each)]

    def _calls_only(self, site: int) -> bool:
        return self.addresses[site][0] == OUTBOUND_ONLY


def _with(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
