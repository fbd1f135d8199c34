"""A plan for each order of size of the buffers that are exchanged. Pure.

The best trees for a kilobyte are few and shallow, those for a gigabyte many. A group learns of its
buffers' sizes call by call: so an exchange of an order of size that has no plan yet waits until one
is made for its size, and later ones of the order run under that plan. Plans are made for a network:
once that is another, all are forgotten but the new one, and others are made when they are needed.

Versions rise over all orders, so that an exchange's version names its plan.
"""

from __future__ import annotations

from collections.abc import Collection

from anabranch import plan as plans
from anabranch.net.messages import Signature
from anabranch.plan import Plan


def order_of(elements: int) -> int:
    """Return a size's order: how many digits it has.

    >>> order_of(9_999), order_of(10_000), order_of(99_999)
    (4, 5, 5)
    """
    return len(str(elements))


class PlansBySize:
    """The plans that exchanges of the same members run under.

    Args:
        plan: the first.
        by_size: whether each order of size has a plan of its own; else the latest serves all.
        orders: the plans that orders of size have from the first on.

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
        """Each plan that exchanges may run under from now on, by version."""
        found = {plan.version: plan for plan in (*self._orders.values(), self.latest)}
        return [found[version] for version in sorted(found)]

    def of(self, elements: int) -> Plan | None:
        """Return the plan for buffers of this size; None where there is none yet."""
        return self._orders.get(order_of(elements)) if self._by_size else self.latest

    def for_exchange(self, signature: Signature) -> Plan | None:
        """Return the plan for an exchange; what hands the state on is moved by plans of its own."""
        return self.latest if signature.receivers else self.of(signature.elements)

    def replace(self, plan: Plan, elements: int) -> None:
        """Forget the other plans, as the network is another.

        Args:
            plan: for it.
            elements: of the buffers that it was made for; 0 where it was made for none.

        Raises:
            ValueError: its version is not higher than those of the others.
        """
        self._check_follows(plan)
        self.latest = plan
        self._orders = {order_of(elements): plan} if elements else {}

    def add(self, plan: Plan, elements: int) -> None:
        """Let buffers of a further order of size have this plan: a new one, or one in use.

        Raises:
            ValueError: it is new, and its version is not higher than those of the others.
        """
        if plan.version not in {each.version for each in self.in_use}:
            self._check_follows(plan)
            self.latest = plan
        self._orders[order_of(elements)] = plan

    def restricted(self, members: Collection[int]) -> PlansBySize:
        """Return the same for some of the members; of none, as they are."""
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
