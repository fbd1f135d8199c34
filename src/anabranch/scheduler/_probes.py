"""Schedules the probes of cut links, and combines sites' reports about neighbours. Pure."""

from __future__ import annotations

_FIRST_S, _LONGEST_S = 0.5, 300.0  # pauses between probes
_FRESH_S = 0.35  # how long a report of silence counts; sites repeat it after a third of that

Ends = frozenset[int]
"""Two neighbours, with the links between them cut in both directions."""

Process = tuple[int, int]
"""A site, and its incarnation."""


class Probes:
    """Probes of cut links, at growing intervals, until both ends have opened lanes again."""

    def __init__(self) -> None:
        self._pauses_s: dict[Ends, float] = {}
        self._answers: dict[Ends, dict[int, bool]] = {}  # by the answering end
        self._healing: dict[Ends, set[int]] = {}  # the ends that have lanes again
        self._healed_s: dict[Ends, float] = {}  # when both ends had lanes again

    def pause_s(self, ends: Ends, now_s: float) -> float:
        """Return how long to wait for the next probe; each time twice as long, up to five minutes.

        Links that were whole for longer than the last pause begin with the first pause again.

        >>> probes = Probes()
        >>> [probes.pause_s(frozenset({0, 1}), 0.0) for _ in range(3)]
        [0.5, 1.0, 2.0]
        """
        pause_s = self._pauses_s.get(ends, _FIRST_S)
        if now_s - self._healed_s.pop(ends, now_s) > pause_s:
            pause_s = _FIRST_S
        self._pauses_s[ends] = min(2 * pause_s, _LONGEST_S)
        return pause_s

    def ask(self, ends: Ends) -> None:
        """Note that both ends are asked whether they reach the other."""
        self._answers[ends] = {}

    def is_asked(self, ends: Ends) -> bool:
        """Return whether answers are awaited."""
        return ends in self._answers

    def hear(self, ends: Ends, site: int, answers: bool) -> bool | None:
        """Take an end's answer; return whether each reaches the other, None if one is missing."""
        said = self._answers[ends]
        said[site] = answers
        if len(said) < len(ends):
            return None
        del self._answers[ends]
        return all(said.values())

    def heal(self, ends: Ends) -> None:
        """Note that both ends are told to open lanes again."""
        self._healing[ends] = set()

    def is_healing(self, ends: Ends) -> bool:
        """Return whether both ends are told to open lanes and one has not done so yet."""
        return ends in self._healing

    def healed(self, ends: Ends, site: int, now_s: float) -> bool:
        """Note that an end has opened lanes; return whether both have."""
        self._healing[ends].add(site)
        if self._healing[ends] != ends:
            return False
        del self._healing[ends]
        self._healed_s[ends] = now_s
        return True


class Accusations:
    """Reports of lanes that ended, until they are judged."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()  # (accuser, accused)

    def add(self, accuser: int, accused: int) -> None:
        """Note that a site has lost its lane to another."""
        self._pairs.add((accuser, accused))

    def __contains__(self, site: int) -> bool:
        return any(accused == site for _, accused in self._pairs)

    def forgive(self, one: int, other: int) -> None:
        """Forget the reports of two sites about each other."""
        self._pairs -= {(one, other), (other, one)}

    def forget(self, site: int) -> None:
        """Forget the reports of a site, and those about it.

        >>> accusations = Accusations()
        >>> accusations.add(3, 1)
        >>> accusations.forget(3)
        >>> 1 in accusations
        False
        """
        self._pairs = {pair for pair in self._pairs if site not in pair}


class Silences:
    """Reports of neighbours that receive nothing from each other.

    A site repeats its report while the silence lasts. An old report does not count, because its
    site may stand still itself by now. If both ends report a silence, and no other report names
    either of them, then the links between the two carry no data.
    """

    def __init__(self) -> None:
        self._silent_s: dict[tuple[Process, Process], float] = {}  # when, by reporter and neighbour

    def hear(self, site: Process, neighbour: Process, is_silent: bool, now_s: float) -> None:
        """Take a site's report that a neighbour is silent, or is heard again."""
        old = [pair for pair, at_s in self._silent_s.items() if now_s - at_s > _FRESH_S]
        for pair in old:
            del self._silent_s[pair]
        if is_silent:
            self._silent_s[site, neighbour] = now_s
        else:
            self._silent_s.pop((site, neighbour), None)

    def are_mutual(self, one: Process, other: Process, now_s: float) -> bool:
        """Return whether each reports that it receives nothing from the other.

        >>> silences = Silences()
        >>> silences.hear((0, 0), (1, 0), is_silent=True, now_s=0.0)
        >>> silences.are_mutual((0, 0), (1, 0), now_s=0.1)
        False
        >>> silences.hear((1, 0), (0, 0), is_silent=True, now_s=0.2)
        >>> [silences.are_mutual((0, 0), (1, 0), now_s) for now_s in (0.2, 2.0)]
        [True, False]
        """
        said_s = (self._silent_s.get(pair, -_FRESH_S) for pair in ((one, other), (other, one)))
        return all(now_s - at_s <= _FRESH_S for at_s in said_s)

    def are_alone(self, one: Process, other: Process, now_s: float) -> bool:
        """Return whether these two report each other silent, and no other report names either."""
        fresh = {pair for pair, at_s in self._silent_s.items() if now_s - at_s <= _FRESH_S}
        about = {pair for pair in fresh if {one, other} & {*pair}}
        return about == {(one, other), (other, one)}
