"""Requests for exchanges that wait to be granted, and which of them are no calls yet. Pure."""

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
        site, number, signature: which site asks, for which exchange of its channel, of what.
        attempt: how often the site had asked for it ahead before, and taken that back.
    """

    site: int
    number: int
    signature: Signature
    attempt: int = 0


class Requests:
    """The requests of one channel's members.

    A member may ask for its next exchange ahead of its call. Until then any other call of the
    member takes the request back.

    Attributes:
        waiting: those that are not granted, in the order in which they came.
    """

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self._ahead: dict[int, Request] = {}  # by site, granted or not

    def is_ahead(self, request: Request) -> bool:
        """Return whether this request is ahead of its call."""
        return self._ahead.get(request.site) == request

    def add(self, request: Request, is_ahead: bool = False) -> None:
        """Let a request wait.

        Raises:
            OutOfPlaceMessage: its site has asked for that exchange ahead already.
        """
        if is_ahead:
            if request.site in self._ahead:
                raise OutOfPlaceMessage(
                    f"site {request.site} asks twice for exchange {request.number} ahead"
                )
            self._ahead[request.site] = request
        self.waiting.append(request)

    def call(self, request: Request) -> bool:
        """Take note of a call; return whether it was asked for ahead, and waits or is granted."""
        return self._ahead.pop(request.site, None) == request

    def take_back(self, site: int) -> Request | None:
        """Drop what a site has asked for ahead; return it, None where it has not."""
        request = self._ahead.pop(site, None)
        if request is not None:
            self._keep(each for each in self.waiting if each != request)
        return request

    def take_all(self) -> list[Request]:
        """Return all that waits; none of it waits any more."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken

    def drop(self, number: int) -> None:
        """Drop the requests for an exchange."""
        self._keep(each for each in self.waiting if each.number != number)

    def drop_after(self, number: int) -> list[Request]:
        """Drop the requests for later exchanges; return those that are calls."""
        later = [each for each in self.waiting if each.number > number]
        self._keep(each for each in self.waiting if each.number <= number)
        return [each for each in later if not self.is_ahead(each)]

    def lose(self, sites: Collection[int]) -> None:
        """Drop the requests of sites that are lost."""
        for site in sites:
            self._ahead.pop(site, None)
        self._keep(each for each in self.waiting if each.site not in sites)

    def sort(self) -> None:
        """Let the requests for earlier exchanges come first."""
        self._keep(sorted(self.waiting, key=lambda each: each.number))

    def _keep(self, requests: Iterable[Request]) -> None:
        self.waiting = deque(requests)
