"""The bursts by which sites measure links as a group begins; see :mod:`anabranch.site._bursts`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from anabranch.net.deadline import within

_LONGEST_S = 8.0  # sites give up after five, if they live


class AwaitedBursts:
    """The sites that have yet to tell what the bursts show.

    Args:
        are_over: called once all sites have told, or are lost.
    """

    def __init__(self, are_over: Callable[[], None]) -> None:
        self._are_over = are_over
        self._awaited: set[int] = set()
        self._are_told = asyncio.Event()
        self._are_told.set()

    def begin(self, sites: Collection[int]) -> None:
        """Await these sites."""
        self._awaited = {*sites}
        self._are_told.clear()

    def over(self, *sites: int) -> None:
        """Note that sites have told, or are lost."""
        if self._awaited.isdisjoint(sites):
            return
        self._awaited.difference_update(sites)
        if not self._awaited:
            self._are_over()
            self._are_told.set()

    async def wait_until_over(self) -> None:
        """Wait until links are known as far as bursts show them; at once where there are none.

        A site that stands still tells nothing. It is no longer awaited after a few seconds.
        """
        try:
            async with within(_LONGEST_S):
                await self._are_told.wait()
        except TimeoutError:
            self.over(*self._awaited)
