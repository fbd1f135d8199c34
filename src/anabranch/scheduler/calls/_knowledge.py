"""Tracks what each member was told of its channel, of plans and of failed exchanges. Pure.

A member of a subgroup learns of its channel when it asks for it. A failure is told at once to the
members that know the channel. The others hear of it when they ask for the failed exchange.
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
        reason: why it failed.
        told: the members that were told.
    """

    exchange: int
    reason: str
    told: frozenset[int]


class Knowledge:
    """What the members of one channel know.

    Args:
        members: of the channel.
        version: of the plan that each has, if it knows the channel.
        is_known: whether all members know the channel from the start.
    """

    def __init__(self, members: Iterable[int], version: int, is_known: bool) -> None:
        known = {version} if is_known else set()
        # By member, the versions of the plans that it has.
        self._versions = {member: known.copy() for member in members}
        self._informed = set(self._versions) if is_known else set()  # members that know the channel
        self._failed: dict[int, Failure] = {}  # by number

    # --- plans

    def tell(self, site: int, plan: Plan) -> Plan | None:
        """Return a plan to send to a site, which has it from now on; None if it has it already."""
        if plan.version in self._versions[site]:
            return None
        self._has_from_now(site, plan)
        return plan

    def tell_of_channel(self, site: int, plan: Plan) -> None:
        """Note that a site knows the channel from now on, and has a plan."""
        self._informed.add(site)
        self._has_from_now(site, plan)

    def _has_from_now(self, site: int, plan: Plan) -> None:
        known = self._versions[site]
        known.add(plan.version)
        known.difference_update(sorted(known)[:-KEPT_PLANS])  # sites forget older plans, too

    # --- failures

    def fail(self, number: int, exchange: int, reason: str = "") -> frozenset[int]:
        """Note that an exchange has failed; return the members to tell."""
        told = frozenset(self._informed)
        self._failed[number] = Failure(exchange, reason, told)
        return told

    def failure(self, number: int) -> Failure | None:
        """Return the failure of an exchange; None if it has not failed."""
        return self._failed.get(number)

    def explain(self, number: int, reason: str) -> None:
        """Keep the reason of a failure, for members that do not know the channel yet."""
        self._failed[number].reason = reason

    # --- members are lost and admitted

    def lose(self, sites: Collection[int]) -> None:
        """Remove lost members."""
        for site in sites:
            del self._versions[site]
        self._informed.difference_update(sites)

    def admit(self, members: Collection[int], version: int) -> None:
        """Set the members; all know the channel and have one plan."""
        self._informed.update(members)
        self._versions = {member: {version} for member in members}

    def restore(self, site: int, version: int) -> None:
        """Restore what a member knows: the channel, and one plan."""
        self._informed.add(site)
        self._versions[site] = {version}

    def restore_failure(self, number: int, reason: str, told: Iterable[int]) -> None:
        """Restore a failure that these members know; the others will ask for the exchange."""
        self._failed[number] = Failure(0, reason, frozenset(told))
