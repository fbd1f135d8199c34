"""Which plan each round runs under, and whether all sites agree on its result. Pure."""

from __future__ import annotations

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.plan import Plan


class RoundBook:
    """Fixes one plan version for each round, at the first request for it (NetStorm, VII-A).

    A new plan counts for the rounds that nobody has asked for yet, so a round never mixes two. A
    site may ask for its next round before it has ended the present one.

    Args:
        sites: how many sites there are; each asks for every round, in order.
        plan: the first plan.
    """

    def __init__(self, sites: int, plan: Plan) -> None:
        self._sites = sites
        self._plan = plan
        self._plans: dict[int, Plan] = {}  # by round, while a site may be in it
        self._asked = [0] * sites  # the last round each site asked for
        self._ended = [0] * sites  # the last round each site ended
        self._known = [plan.version] * sites  # the plan version each site has
        self._checksums: dict[int, dict[int, int | None]] = {}
        self._last: int | None = None  # no round after this one is held

    @property
    def round(self) -> int:
        """The latest round anybody asked for; 0 before the first."""
        return max(self._asked)

    @property
    def plan(self) -> Plan:
        """The plan that rounds nobody has asked for yet run under."""
        return self._plan

    def is_held(self, round: int) -> bool:
        """Return whether somebody has asked for this round, and not all have ended it."""
        return round in self._plans

    def issue(self, plan: Plan) -> None:
        """Let every round that nobody has asked for yet run under this plan."""
        if plan.version <= self._plan.version:
            raise ValueError(
                f"plan version {plan.version} does not follow {self._plan.version}; versions rise"
            )
        self._plan = plan

    def close(self) -> None:
        """Hold no round that nobody has asked for yet; those in progress run to their end."""
        if self._last is None:
            self._last = self.round

    def grant(self, site: int, round: int) -> tuple[Plan, bool] | None:
        """Answer a site's request; return the round's plan and whether the site lacks it.

        Returns:
            None if the round is not held.

        Raises:
            OutOfPlaceMessage: the site does not ask for the round after its last.
        """
        if round != self._asked[site] + 1:
            raise OutOfPlaceMessage(
                f"site {site} asks for round {round} after round {self._asked[site]}"
            )
        if self._last is not None and round > self._last:
            return None
        plan = self._plans.setdefault(round, self._plan)
        self._asked[site] = round
        for over in [other for other in self._plans if other + 2 <= min(self._asked)]:
            del self._plans[over]  # who asks for a round has the result of the last but one
        lacks = self._known[site] != plan.version
        self._known[site] = plan.version
        return plan, lacks

    def ended(self, site: int, round: int, version: int, checksum: int | None) -> str | None:
        """Note that a site holds a round's result; return what is wrong once all do, or None.

        Raises:
            OutOfPlaceMessage: the site is not in that round or ran it under another version, or
                has said so before.
        """
        if round <= self._ended[site] or round > self._asked[site] or round not in self._plans:
            raise OutOfPlaceMessage(f"site {site} ends round {round}, which it is not in")
        if version != self._plans[round].version:
            raise OutOfPlaceMessage(f"site {site} ends round {round} under version {version}")
        self._ended[site] = round
        votes = self._checksums.setdefault(round, {})
        votes[site] = checksum
        if len(votes) < self._sites:
            return None
        del self._plans[round], self._checksums[round]
        return _disagreement(round, votes)


def _disagreement(round: int, votes: dict[int, int | None]) -> str | None:
    values = list(votes.values())
    common = max(set(values), key=lambda value: (values.count(value), value is not None, value))
    odd = sorted(site for site, value in votes.items() if value != common)
    if not odd:
        return None
    return f"after round {round} the models of sites {odd} differ from the others'"
