"""Requests that wait for a grant, and which of them were made ahead of the call. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from anabranch.exchange.terms import planned_elements
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import Signature


@dataclass(frozen=True, slots=True)
class Request:
    """A site's request for an exchange.

    Args:
        site: the site.
        number: of the exchange in its channel.
        signature: the terms of the exchange.
        attempt: the number of the site's earlier requests for it that it withdrew.
        is_leased: whether the site has begun it, under a lease.
    """

    site: int
    number: int
    signature: Signature
    attempt: int = 0
    is_leased: bool = False


class Requests:
    """The requests of one channel's members.

    A member may ask for its next exchange before it calls. Any other call of that member withdraws
    the request.

    Attributes:
        sizes: how many numbers wait by the elements of their buffers, and whether all contribute.
            Those that get the state of training are left out.
    """

    def __init__(self) -> None:
        # Requests without a grant: by number, in order of arrival.
        self._waiting: dict[int, list[Request]] = {}
        self._ahead: dict[int, Request] = {}  # by site, granted or not
        self.sizes: Counter[tuple[int, bool]] = Counter()

    @property
    def numbers(self) -> Collection[int]:
        """The numbers that wait; the first ones were asked for first."""
        return self._waiting.keys()

    def of(self, number: int) -> list[Request]:
        """Return the requests for a number, in order of arrival."""
        return self._waiting.get(number, [])

    def is_ahead(self, request: Request) -> bool:
        """Return whether a site made this request ahead and has not called yet."""
        return self._ahead.get(request.site) == request

    def add(self, request: Request, is_ahead: bool = False) -> None:
        """Queue a request.

        Raises:
            OutOfPlaceMessage: its site has asked ahead already.
        """
        if is_ahead:
            if request.site in self._ahead:
                raise OutOfPlaceMessage(
                    f"site {request.site} asks twice for exchange {request.number} ahead"
                )
            self._ahead[request.site] = request
        self.keep(request.number, [*self.of(request.number), request])

    def call(self, request: Request) -> bool:
        """Note a call; return whether a request ahead has queued it, or got its grant, already."""
        # A request ahead for another exchange was withdrawn before this call. It would otherwise
        # stay in the queue as if it were a call.
        return self._ahead.pop(request.site, None) == request

    def take_back(self, site: int) -> Request | None:
        """Withdraw a site's request ahead, and return it; None if it made none."""
        request = self._ahead.pop(site, None)
        if request is not None:
            self.keep(request.number, [each for each in self.of(request.number) if each != request])
        return request

    def keep(self, number: int, requests: list[Request]) -> None:
        """Let these requests wait for a number, and no others."""
        if number in self._waiting:
            self._count(self._waiting[number][0].signature, -1)
        if requests:
            self._waiting[number] = requests
            self._count(requests[0].signature, 1)
        else:
            self._waiting.pop(number, None)

    def drop(self, number: int) -> None:
        """Drop the requests for a failed exchange; sites hear of the failure when they call."""
        self.keep(number, [])

    def drop_after(self, number: int) -> list[Request]:
        """Drop the requests for later exchanges; return the calls among them, to be answered."""
        dropped: list[Request] = []
        for later in [each for each in self._waiting if each > number]:
            dropped += self._waiting[later]
            self.drop(later)
        return [each for each in dropped if not self.is_ahead(each)]

    def lose(self, sites: Collection[int]) -> None:
        """Drop the requests of sites that are lost."""
        for site in sites:
            self._ahead.pop(site, None)
        for number, requests in list(self._waiting.items()):
            self.keep(number, [each for each in requests if each.site not in sites])

    def sort(self) -> None:
        """Order the queue by exchange number."""
        self._waiting = dict(sorted(self._waiting.items()))

    def _count(self, signature: Signature, change: int) -> None:
        if not signature.receivers:
            elements = planned_elements(signature)
            size = elements, signature.source is None
            self.sizes[size] += change
            if not self.sizes[size]:
                del self.sizes[size]
