"""Keeps one plan for each order of size of the buffers that members exchange. Pure.

The best trees for a kilobyte are few and shallow, those for a gigabyte many. A group learns the
sizes of its buffers call by call. So an exchange whose order of size has no plan waits until one is
made. Later exchanges of the order use that plan.

Plans are made for a network. After a change of the network, only the new plan is kept, and others
are made on demand. Versions rise over all orders, so a version names one plan.
"""

from __future__ import annotations

from collections.abc import Collection

from anabranch import plan as plans
from anabranch.exchange.terms import planned_elements
from anabranch.net.messages import Signature
from anabranch.plan import Plan


def order_of(elements: int) -> int:
    """Return a size's order: how many digits it has.

    >>> order_of(9_999), order_of(10_000), order_of(99_999)
    (4, 5, 5)
    """
    return len(str(elements))


class PlansBySize:
    """The plans of the exchanges of some members.

    Args:
        plan: the first plan.
        by_size: whether each order of size has its own plan; otherwise the latest serves all.
        orders: the first plans of orders of size.

    Attributes:
        latest: the plan of the highest version.
    """

    def __init__(
        self, plan: Plan, by_size: bool = False, orders: dict[int, Plan] | None = None
    ) -> None:
        self.latest = plan
        self._by_size = by_size
        self._orders = orders or {}

    @property
    def in_use(self) -> list[Plan]:
        """The plans of exchanges that begin from now on, by version."""
        found = {plan.version: plan for plan in (*self._orders.values(), self.latest)}
        return [found[version] for version in sorted(found)]

    def of(self, elements: int) -> Plan | None:
        """Return the plan for buffers of this size; None if there is none yet."""
        return self._orders.get(order_of(elements)) if self._by_size else self.latest

    def for_exchange(self, signature: Signature) -> Plan | None:
        """Return the plan for an exchange; a transfer has the latest, and its parts have others."""
        if signature.receivers:
            return self.latest
        return self.of(planned_elements(signature))

    def replace(self, plan: Plan, elements: int) -> None:
        """Replace all plans, since the network has changed.

        Args:
            plan: the plan for the new network.
            elements: the size of the buffers that it was made for; 0 if it was made for no size.

        Raises:
            ValueError: its version is not higher than those of the others.
        """
        self._check_follows(plan)
        self.latest = plan
        self._orders = {order_of(elements): plan} if elements else {}

    def add(self, plan: Plan, elements: int) -> None:
        """Use a plan for a further order of size of buffers: a new plan, or one in use.

        Raises:
            ValueError: it is new, and its version is not higher than those of the others.
        """
        if plan.version not in {each.version for each in self.in_use}:
            self._check_follows(plan)
            self.latest = plan
        self._orders[order_of(elements)] = plan

    def restricted(self, members: Collection[int]) -> PlansBySize:
        """Return the plans restricted to some of the members; unchanged for no members."""
        found = {
            each.version: plans.restrict(each, members) if members else each for each in self.in_use
        }
        orders = {order: found[plan.version] for order, plan in self._orders.items()}
        return PlansBySize(found[self.latest.version], self._by_size, orders)

    def _check_follows(self, plan: Plan) -> None:
        if plan.version <= self.latest.version:
            raise ValueError(
                f"plan version {plan.version} does not follow {self.latest.version}; versions rise"
            )
