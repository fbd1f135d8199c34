"""Results that lack members' contributions: their number, and log lines about them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from anabranch.site.round import Round


class Incomplete:
    """The incomplete results at one site.

    Args:
        names: the sites' names, by index.

    Attributes:
        count: how many incomplete results this site has had.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._said: set[frozenset[int]] = set()
        self.count = 0

    def note(self, done: Round, members: Collection[int]) -> str:
        """Record an exchange that has ended.

        Args:
            done: the exchange.
            members: the sites that could contribute.

        Returns:
            A line for the log. Empty if the result is complete, or if a line named the same sites
            before.
        """
        lacking: Counter[int] = Counter()
        for part in done.contributions:
            for site in {*members} - {*part.sites}:
                lacking[site] += part.stop - part.start
        if not lacking:
            return ""
        self.count += 1
        if frozenset(lacking) in self._said:
            return ""
        self._said.add(frozenset(lacking))
        elements = done.contributions[-1].stop
        # A member in no part has joined lately: a lost site would be no member any more.
        late = [site for site in sorted(lacking) if self._catches_up(site, done, lacking)]
        lost = ", ".join(
            f"{self._names[site]} (in {lacking[site]} of {elements} elements)"
            for site in sorted({*lacking} - {*late})
        )
        said = [f"lacks contributions of {lost}"] if lost else []
        if late:
            names = ", ".join(self._names[site] for site in late)
            said.append(f"has none of {names} yet, which joined lately and is catching up")
        return (
            f"the result of exchange {done.round} {'; it '.join(said)}; "
            "handle.contributors says so for each result, and group.stats.incomplete counts them"
        )

    @staticmethod
    def _catches_up(site: int, done: Round, lacking: Counter[int]) -> bool:
        return site in done.members and lacking[site] == done.contributions[-1].stop
