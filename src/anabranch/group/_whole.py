"""Futures that fail when a member is lost, for calls that need every member.

If a member is lost, a group's calls continue without it. Calls of other libraries between the same
processes, such as gloo, do not: they wait for the lost member. Their caller watches a future.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from anabranch.site.collectives import ExchangeError


class Whole:
    """Futures that fail with the first loss; :meth:`watch` may be called in any thread."""

    def __init__(self) -> None:
        self._watched: list[tuple[frozenset[int], Future[None]]] = []

    def watch(self, sites: Iterable[int], ended: Future[None]) -> Future[None]:
        """Return a future that fails once one of these sites is lost, or with ``ended``.

        Args:
            sites: indices of sites.
            ended: fails with the error that ends the group early. If it is cancelled, so is the
                result.
        """
        future: Future[None] = Future()
        self._watched.append((frozenset(sites), future))

        def has_ended(done: Future[None]) -> None:
            if done.cancelled():
                future.cancel()
            elif (error := done.exception()) is not None:
                _fail(future, error)

        ended.add_done_callback(has_ended)
        return future

    def lost(self, site: int, reason: str) -> None:
        """Fail the futures that watch a lost site; the others continue."""
        for sites, future in [*self._watched]:
            if site in sites:
                _fail(future, ExchangeError(reason))


def _fail(future: Future[None], error: BaseException) -> None:
    with suppress(InvalidStateError):  # the future has failed before, or was cancelled
        future.set_exception(error)
