"""Which links nothing crosses, and when to look whether cut ones lead somewhere again. Pure."""

from __future__ import annotations

_FIRST_S, _LONGEST_S = 5.0, 300.0  # between looks

Ends = frozenset[int]
"""Two neighbours, both of whose links were cut."""

Process = tuple[int, int]
"""A site, and which of its incarnations."""


class Probes:
    """Looks at cut links: ever less often, until both ends reach each other and use lanes again."""

    def __init__(self) -> None:
        self._pauses_s: dict[Ends, float] = {}
        self._answers: dict[Ends, dict[int, bool]] = {}  # by the end that said it
        self._healing: dict[Ends, set[int]] = {}  # which ends have lanes again
        self._healed_s: dict[Ends, float] = {}  # when both had

    def pause_s(self, ends: Ends, now_s: float) -> float:
        """Return how long to wait for the next look; each time twice as long, up to five minutes.

        Links that then were whole for longer than the last pause begin anew.

        >>> probes = Probes()
        >>> [probes.pause_s(frozenset({0, 1}), 0.0) for _ in range(3)]
        [5.0, 10.0, 20.0]
        """
        pause_s = self._pauses_s.get(ends, _FIRST_S)
        if now_s - self._healed_s.pop(ends, now_s) > pause_s:
            pause_s = _FIRST_S
        self._pauses_s[ends] = min(2 * pause_s, _LONGEST_S)
        return pause_s

    def ask(self, ends: Ends) -> None:
        """Take note that both ends are asked whether they reach the other."""
        self._answers[ends] = {}

    def is_asked(self, ends: Ends) -> bool:
        """Return whether answers are awaited."""
        return ends in self._answers

    def hear(self, ends: Ends, site: int, answers: bool) -> bool | None:
        """Take an end's answer; return whether each reaches the other, None if one is awaited."""
        said = self._answers[ends]
        said[site] = answers
        if len(said) < len(ends):
            return None
        del self._answers[ends]
        return all(said.values())

    def heal(self, ends: Ends) -> None:
        """Take note that both ends are told to use lanes again."""
        self._healing[ends] = set()

    def is_healing(self, ends: Ends) -> bool:
        """Return whether they are, and not both have said that they do."""
        return ends in self._healing

    def healed(self, ends: Ends, site: int, now_s: float) -> bool:
        """Take note that an end does; return whether both do now."""
        self._healing[ends].add(site)
        if self._healing[ends] != ends:
            return False
        del self._healing[ends]
        self._healed_s[ends] = now_s
        return True


class Silences:
    """Which neighbours say that they hear nothing of each other.

    One that stands still hears nothing either, and says nothing of it; so where both say so, it is
    the links between them that nothing crosses.
    """

    def __init__(self) -> None:
        self._silent: set[tuple[Process, Process]] = set()  # who says it, of whom

    def hear(self, site: Process, neighbour: Process, is_silent: bool) -> None:
        """Take note of what a site says of a neighbour: that it is silent, or speaks again.

        >>> silences = Silences()
        >>> silences.hear((0, 0), (1, 0), is_silent=True)
        >>> silences.are_mutual((0, 0), (1, 0))
        False
        >>> silences.hear((1, 0), (0, 0), is_silent=True)
        >>> silences.are_mutual((0, 0), (1, 0))
        True
        """
        if is_silent:
            self._silent.add((site, neighbour))
        else:
            self._silent.discard((site, neighbour))

    def are_mutual(self, one: Process, other: Process) -> bool:
        """Return whether each says that it hears nothing of the other."""
        return {(one, other), (other, one)} <= self._silent

    def forget(self, ends: Ends) -> None:
        """Take note that the links between two sites were cut, and are opened anew."""
        between = {pair for pair in self._silent if {site for site, _ in pair} == ends}
        self._silent -= between
