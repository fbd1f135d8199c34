"""The settings of a relay process: its devices, and the delay and loss between them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from anabranch_lab.emulate._layout import Layout, device

READY = "ready"
"""The line that a relay prints once its devices exist."""


@dataclass(frozen=True, slots=True)
class Line:
    """One direction between two devices.

    Args:
        source, target: indices into the wiring's devices.
        delay_s: how long a packet takes.
        loss: share of segments lost, in [0, 1).
        seed: of the draw of lost segments.
    """

    source: int
    target: int
    delay_s: float
    loss: float
    seed: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """The settings of a relay.

    Args:
        devices: namespace and name of each device to make.
        lines: for each device, the device that its packets go to, with delay and loss.
    """

    devices: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]

    def dumps(self) -> str:
        """Return the wiring as one line of text; ``loads`` reads it."""
        lines = [
            (line.source, line.target, line.delay_s, line.loss, line.seed) for line in self.lines
        ]
        return json.dumps([self.devices, lines])

    @staticmethod
    def loads(text: str) -> Wiring:
        """Read the text that ``dumps`` wrote."""
        devices, lines = json.loads(text)
        return Wiring(
            tuple((namespace, name) for namespace, name in devices),
            tuple(Line(*line) for line in lines),
        )


def wire(layout: Layout, seed: int) -> Wiring:
    """Return the wiring of a layout's relay. A direction without a link has the other's delay."""
    devices: list[tuple[str, str]] = []
    lines: list[Line] = []
    for pair in layout.pairs:
        first = len(devices)
        for here, there, source, target in (
            (*pair, first, first + 1),
            (*pair[::-1], first + 1, first),
        ):
            devices.append((layout.namespaces[here], device(there)))
            link, back = layout.overlay.link(here, there), layout.overlay.link(there, here)
            way = link or back
            assert way is not None
            loss = 0.0 if link is None else link.loss
            # A generator takes one number, and no two lines may lose the same packets.
            line_seed = (seed * layout.overlay.size + here) * layout.overlay.size + there
            lines.append(Line(source, target, way.latency_s, loss, line_seed))
    return Wiring(tuple(devices), tuple(lines))
