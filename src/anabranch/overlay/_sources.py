"""The sources of an overlay's figures, for people to check: a file may hold unused attributes."""

from __future__ import annotations

from collections import Counter

from anabranch.overlay._quantities import Kind

_LISTED = 12
_EXAMPLE = 40  # characters of a value


class Sources:
    """Counts links by the source of their figures, and attributes that were not used."""

    def __init__(self) -> None:
        self._used: dict[Kind, Counter[str]] = {"rate": Counter(), "latency": Counter()}
        self._used["loss"] = Counter()
        self._unused: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def use(self, kind: Kind, source: str) -> None:
        """Count a link whose figure comes from a source."""
        self._used[kind][source] += 1

    def leave(self, attribute: str, value: object, why: str) -> None:
        """Count a value of an attribute that was not used."""
        self._unused[attribute, why] += 1
        text = repr(value)
        shown = text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]}..."
        self._examples.setdefault((attribute, why), shown)

    def lines(self) -> tuple[str, ...]:
        """Return a line for each quantity, and for each attribute that was not used."""
        said = []
        for kind, sources in self._used.items():
            if sources:
                parts = ", ".join(f"{source} ({count})" for source, count in sources.items())
                said.append(f"{kind} of links: {parts}")
        unused = list(self._unused.items())
        for (attribute, why), count in unused[:_LISTED]:
            example = self._examples[attribute, why]
            said.append(f"not used: {attribute} of {count}, such as {example}: it {why}")
        if len(unused) > _LISTED:
            said.append(f"not used: {len(unused) - _LISTED} more attributes")
        return tuple(said)
