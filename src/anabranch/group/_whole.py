"""Futures that fail when a member is lost, for calls that need every member.

If a member is lost, a group's calls continue without it. Calls of other libraries between the same
processes, such as gloo, do not: they wait for the lost member. Their caller watches a future.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from anabranch.site.round import ExchangeError


class Whole:
    """Futures that fail with the first loss; :meth:`watch` may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[tuple[frozenset[int], Future[None]]] = []
        self._lost: dict[int, tuple[int, str]] = {}  # a site's latest loss: admissions, reason

    def watch(
        self, sites: Iterable[int], ended: Future[None], admissions: int | None
    ) -> Future[None]:
        """Return a future that fails once one of these sites is lost, or with ``ended``.

        With ``admissions``, it fails at once if one of them has been lost since.

        Args:
            sites: indices of sites.
            ended: fails with the error that ends the group early. If it is cancelled, so is the
                result.
            admissions: how many admissions there were when these were the members. A site that was
                lost before the latest one is back. None: earlier losses do not count.
        """
        future: Future[None] = Future()
        members = frozenset(sites)
        with self._lock:
            self._watched.append((members, future))
            lost = [each for site, each in self._lost.items() if site in members]
        for when, reason in lost:
            if admissions is not None and when >= admissions:
                _fail(future, ExchangeError(reason))

        def has_ended(done: Future[None]) -> None:
            if done.cancelled():
                future.cancel()
            elif (error := done.exception()) is not None:
                _fail(future, error)

        ended.add_done_callback(has_ended)
        return future

    def lost(self, site: int, reason: str, admissions: int) -> None:
        """Fail the futures that watch a lost site; the others continue."""
        with self._lock:
            self._lost[site] = admissions, reason
            watched = [*self._watched]
        for sites, future in watched:
            if site in sites:
                _fail(future, ExchangeError(reason))


def _fail(future: Future[None], error: BaseException) -> None:
    with suppress(InvalidStateError):  # the future has failed before, or was cancelled
        future.set_exception(error)
