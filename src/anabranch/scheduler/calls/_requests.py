"""Requests that wait for a grant, and which of them were made ahead of the call. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

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
        waiting: requests without a grant, in order of arrival.
    """

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self._ahead: dict[int, Request] = {}  # by site, granted or not

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
        self.waiting.append(request)

    def call(self, request: Request) -> bool:
        """Note a call; return whether a request ahead has queued it, or got its grant, already."""
        # A request ahead for another exchange was withdrawn before this call. It would otherwise
        # stay in the queue as if it were a call.
        return self._ahead.pop(request.site, None) == request

    def take_back(self, site: int) -> Request | None:
        """Withdraw a site's request ahead, and return it; None if it made none."""
        request = self._ahead.pop(site, None)
        if request is not None:
            self._keep(each for each in self.waiting if each != request)
        return request

    def take_all(self) -> list[Request]:
        """Empty the queue, and return it."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken

    def drop(self, number: int) -> None:
        """Drop the requests for a failed exchange; sites hear of the failure when they call."""
        self._keep(each for each in self.waiting if each.number != number)

    def drop_after(self, number: int) -> list[Request]:
        """Drop the requests for later exchanges; return the calls among them, to be answered."""
        later = [each for each in self.waiting if each.number > number]
        self._keep(each for each in self.waiting if each.number <= number)
        return [each for each in later if not self.is_ahead(each)]

    def lose(self, sites: Collection[int]) -> None:
        """Drop the requests of sites that are lost."""
        for site in sites:
            self._ahead.pop(site, None)
        self._keep(each for each in self.waiting if each.site not in sites)

    def sort(self) -> None:
        """Order the queue by exchange number."""
        self._keep(sorted(self.waiting, key=lambda each: each.number))

    def _keep(self, requests: Iterable[Request]) -> None:
        self.waiting = deque(requests)
