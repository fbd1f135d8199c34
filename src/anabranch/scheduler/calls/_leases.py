"""Leases: exchanges that members may begin without asking, since their grants are fixed. Pure.

A lease covers the next numbers of a channel, for buffers of the sizes that came before. It fixes
the number that each exchange's chunks carry, and for each size the plan, the chunks and the first
trees. So a member that begins under a lease begins exactly what the scheduler would grant. It tells
the scheduler with its request, and waits for no answer::

    asked for one by one ──several in a row──▶ leased ──half is used──▶ leased further
            ▲                                     │
            └─ a new plan, a loss, an admission, ─┘
                            the end

- A member may also ask for a leased number, and gets the same grant: a size may be new to the
  lease, or the lease may be on its way.
- A lease is recalled for a new plan, at the end of a run, and where it is not used. Each member
  answers once it has asked for all that it has begun. Later numbers have the new plan.
- A loss makes a lease void. Members may have begun exchanges of it that the scheduler has not heard
  of. So each of its further exchanges is interrupted as it begins, and completed by a repair.

What must never happen: two members begin one number with different plans or chunk numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.plan import Plan
from anabranch.site.channel import most_delay_s

_MOST = 256  # exchanges of a lease
_MOST_ROUND_TRIPS = 50  # between leased calls
_IN_A_ROW = 3  # exchanges without a gathering between them, before the first lease
_SIZES = 64  # of buffers, that leases cover


@dataclass(frozen=True, slots=True)
class Cut:
    """How the chunks of one size of buffer go.

    Args:
        plan: of the exchange.
        chunk_elements: the most elements of a chunk.
        dispatched: see :data:`anabranch.scheduler.calls._dealing.Dispatching`; None if all chunks
            are dealt beforehand.
    """

    plan: Plan
    chunk_elements: int
    dispatched: tuple[int, int] | None


@dataclass(slots=True)
class LeasedNumbers:
    """Numbers of a channel whose grants are fixed.

    Args:
        first, last: the numbers.
        first_exchange: the number that the chunks of the first one carry; the others follow.
        cuts: by elements of the buffer.
        is_void: whether a loss has ended it.
    """

    first: int
    last: int
    first_exchange: int
    cuts: Mapping[int, Cut]
    is_void: bool = False

    def exchange_of(self, number: int) -> int:
        """Return the number that an exchange's chunks carry."""
        return self.first_exchange + number - self.first


class Leases:
    """The leases of one channel, by number.

    Attributes:
        in_a_row: exchanges since the latest gathering.
        sizes: of the latest buffers, the latest last.
        every_s: the time between calls that a member told last; None if it is not known.
    """

    def __init__(self) -> None:
        self._leases: list[LeasedNumbers] = []
        self.in_a_row = 0
        self.sizes: deque[int] = deque(maxlen=_SIZES)
        self.every_s: float | None = None

    def of(self, number: int) -> LeasedNumbers | None:
        """Return the lease of a number, void or not; None for no lease."""
        for lease in reversed(self._leases):
            if lease.first <= number <= lease.last:
                return lease
        return None

    @property
    def last(self) -> int:
        """The last number that members may begin without asking; 0 for none."""
        return max((each.last for each in self._leases if not each.is_void), default=0)

    def note(self, elements: int) -> None:
        """Take note of the first request for an exchange in which all contribute."""
        self.in_a_row += 1
        if elements in self.sizes:
            self.sizes.remove(elements)
        self.sizes.append(elements)

    def is_due(self, asked: int, count: int) -> bool:
        """Return whether to lease further numbers.

        Args:
            asked: the latest number that a member asked for.
            count: of the lease.
        """
        return count > 0 and self.in_a_row >= _IN_A_ROW and self.last - asked < count / 2

    def add(self, lease: LeasedNumbers, asked_by_all: int) -> None:
        """Add a lease, whose numbers follow those of the others.

        Args:
            lease: the lease.
            asked_by_all: the latest number that all members have asked for. Leases of no later
                number are forgotten.
        """
        self._leases = [each for each in self._leases if each.last > asked_by_all]
        self._leases.append(lease)

    def end(self) -> None:
        """End all leases after a loss; see the module."""
        for lease in self._leases:
            lease.is_void = True
        self.in_a_row = 0

    def truncate(self, last: int) -> None:
        """Lease no number after this one: members have asked for all that they had begun."""
        for lease in self._leases:
            lease.last = min(lease.last, last)

    @property
    def last_exchange(self) -> int:
        """The highest number that chunks carry under a lease which is not void; 0 for none."""
        valid = [each for each in self._leases if not each.is_void]
        return max((each.exchange_of(each.last) for each in valid), default=0)

    def forget(self) -> None:
        """Forget all leases, of which no member has begun or will begin a further exchange."""
        self._leases.clear()
        self.in_a_row = 0


def lease_count(round_trip_s: float, every_s: float | None, under_way: int) -> int:
    """Return how many exchanges to lease, so that the next lease comes before this one is used up.

    A lease is renewed when half of it is used. That takes the delay of a request, and a round trip.
    A lease allows for twice the calls of that time, which come sooner under a lease. Calls that are
    many round trips apart are not leased: that would save little.

    Args:
        round_trip_s: to the farthest member and back.
        every_s: the time between calls; 0 where several are made at once, None if not known.
        under_way: how many are under way at once.

    >>> lease_count(0.060, 0.010, 1), lease_count(0.060, 1.0, 1), lease_count(0.060, 2.0, 10)
    (29, 3, 21)
    >>> lease_count(0.060, 10.0, 1), lease_count(0.060, None, 1)
    (0, 0)
    """
    if every_s is None or not round_trip_s or every_s > _MOST_ROUND_TRIPS * round_trip_s:
        return 0
    renewed_s = round_trip_s + most_delay_s(round_trip_s)
    meanwhile = math.ceil(2 * renewed_s / every_s) if every_s > 0 else 0
    return min(_MOST, 2 * max(meanwhile, under_way) + 1)
