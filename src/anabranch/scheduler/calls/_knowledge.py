"""What each member knows: of its channel, of plans, and of calls that have failed. Pure.

A member of a subgroup learns of the channel when it asks for it. A failure is told to the members
that know of the channel then; the others hear of it when they ask for that exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from anabranch.plan import Plan
from anabranch.site.channel import KEPT_PLANS


@dataclass(slots=True)
class Failure:
    """An exchange that ended without a result.

    Attributes:
        exchange: the number that its chunks carried; 0 where it had not begun.
        reason: why it ended.
        told: the members that were told.
    """

    exchange: int
    reason: str
    told: frozenset[int]


class Knowledge:
    """What the members of one channel know.

    Args:
        members: of the channel.
        version: of the plan that they have, where they know of the channel.
        is_known: whether all know of the channel from the first.
    """

    def __init__(self, members: Iterable[int], version: int, is_known: bool) -> None:
        known = {version} if is_known else set()
        self._versions = {member: known.copy() for member in members}  # of the plans that each has
        self._informed = set(self._versions) if is_known else set()  # those that know the channel
        self._failed: dict[int, Failure] = {}  # by number

    # --- plans

    def tell(self, site: int, plan: Plan) -> Plan | None:
        """Return a plan, which a site has from now on; None if it has it already."""
        if plan.version in self._versions[site]:
            return None
        self._has_from_now(site, plan)
        return plan

    def tell_of_channel(self, site: int, plan: Plan) -> None:
        """Take note that a site knows of the channel from now on, and has this plan."""
        self._informed.add(site)
        self._has_from_now(site, plan)

    def _has_from_now(self, site: int, plan: Plan) -> None:
        known = self._versions[site]
        known.add(plan.version)
        known.difference_update(sorted(known)[:-KEPT_PLANS])  # which the site has forgotten

    # --- failures

    def fail(self, number: int, exchange: int, reason: str = "") -> frozenset[int]:
        """Take note that an exchange has failed; return which members are told."""
        told = frozenset(self._informed)
        self._failed[number] = Failure(exchange, reason, told)
        return told

    def failure(self, number: int) -> Failure | None:
        """Return how an exchange failed; None for another."""
        return self._failed.get(number)

    def explain(self, number: int, reason: str) -> None:
        """Keep why an exchange failed, for members that do not know of the channel yet."""
        self._failed[number].reason = reason

    # --- members that go, and come

    def lose(self, sites: Collection[int]) -> None:
        """Go on without some members."""
        for site in sites:
            del self._versions[site]
        self._informed.difference_update(sites)

    def admit(self, members: Collection[int], version: int) -> None:
        """Let these be the members, which know of the channel and have one plan."""
        self._informed.update(members)
        self._versions = {member: {version} for member in members}

    def restore(self, site: int, version: int) -> None:
        """Take up what a member knows: of the channel, and of one plan."""
        self._informed.add(site)
        self._versions[site] = {version}

    def restore_failure(self, number: int, reason: str, told: Iterable[int]) -> None:
        """Take up a failure that these members know of; the others will ask for the exchange."""
        self._failed[number] = Failure(0, reason, frozenset(told))
