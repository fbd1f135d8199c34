"""Calls that wait for one another, in a thread each, that end where one of them fails.

A pool of threads waits for its calls when it is left. So it is entered before what they wait for, a
service or a group, which then ends first, and they with it::

    with Threads(3) as pool, _serving(service) as (address, token):
        results = pool.each(join_and_train, names)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from anabranch import Group

T = TypeVar("T")
S = TypeVar("S")
_PATIENCE_S = 10.0  # for the others, which may be about to raise the same


class Threads(ThreadPoolExecutor):
    """A pool whose calls are all under way at once."""

    def each(self, call: Callable[[S], T], arguments: Sequence[S]) -> list[T]:
        """Return the results by argument; raise what is raised first, and wait for no other."""
        calls = [self.submit(call, argument) for argument in arguments]
        for done in wait(calls, return_when=FIRST_EXCEPTION).done:
            done.result()
        return [each.result() for each in calls]


def at_each(groups: Sequence[Group], call: Callable[[Group], T]) -> list[T]:
    """Call this with every group, each in a thread of its own; return the results by rank.

    Where one fails, and others do not end by themselves, their groups are ended.
    """
    with Threads(len(groups)) as pool:
        calls = [pool.submit(call, group) for group in groups]
        try:
            done, waiting = wait(calls, return_when=FIRST_EXCEPTION)
            if wait(waiting, _PATIENCE_S).not_done:
                for each in done:
                    each.result()
        except BaseException as error:  # what a time-out raises here, too
            for group in groups:
                group.__exit__(type(error), error, None)
            raise
        return [each.result() for each in calls]
