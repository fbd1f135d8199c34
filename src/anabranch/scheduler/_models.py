"""Compares members' models, by checksums that members send with exchanges. Pure.

A site chooses the exchange for a comparison, and sends a checksum ahead of its request for it. The
last member's request for that exchange ends the comparison, which waits for no missing checksum. So
a site that joined or missed a step costs one comparison, and no false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.net.messages import Model

# Comparisons kept for a channel. One that awaits a lost site never ends, so the oldest are dropped.
_KEPT = 16
_MOST_NAMED = 8  # sites in a message


@dataclass(frozen=True, slots=True)
class UnlikeModels:
    """Members' models differ.

    Args:
        reason: names the members.
        is_first: whether the models differed before the first step.
    """

    reason: str
    is_first: bool


class Models:
    """The checksums of one channel's members.

    Args:
        name: returns a site's name for messages.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._heard: dict[int, dict[int, Model]] = {}  # by exchange and site
        self._said: set[frozenset[int]] = set()  # sites that were named, each set once

    def hear(self, number: int, site: int, model: Model) -> None:
        """Take the checksum that a site sent with an exchange."""
        self._heard.setdefault(number, {})[site] = model
        while len(self._heard) > _KEPT:
            del self._heard[min(self._heard)]

    def compare(self, number: int) -> UnlikeModels | None:
        """Return how the models sent with an exchange differ; None if they are alike.

        Only models after the same step are compared. Each set of sites is reported once. Models
        that differ before the first step are reported each time.
        """
        heard = self._heard.get(number, {})
        steps = [model.step for model in heard.values()]
        common = max(steps, key=lambda step: (steps.count(step), step), default=0)
        found = {site: heard[site] for site in sorted(heard) if heard[site].step == common}
        unlike = _unlike(found)
        if not unlike:
            return None
        is_first = all(model.is_first for model in found.values())
        if not is_first and frozenset(unlike) in self._said:
            return None
        self._said.add(frozenset(unlike))
        named = [self._name(site) for site in unlike[:_MOST_NAMED]]
        if more := len(unlike) - len(named):
            named.append(f"{more} more")
        first = self._name(next(iter(found)))
        if is_first:
            return UnlikeModels(
                f"models differ before their first step: that of {', '.join(named)} is not that "
                f"of {first}; call group.broadcast(model) before training, or set "
                "group.on_unlike = 'allow' where they are to differ",
                is_first,
            )
        return UnlikeModels(
            f"the model of {', '.join(named)} no longer equals that of {first}, as after steps "
            "with other gradients, or on processors that round differently; group.verify(model) "
            "names tensors, group.broadcast(model) makes models alike",
            is_first,
        )


def _unlike(found: Mapping[int, Model]) -> list[int]:
    """Return the sites whose checksum is not the first one's."""
    first = next(iter(found.values()), None)
    return [site for site, model in found.items() if first and model.checksum != first.checksum]
