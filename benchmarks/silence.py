"""How often a peer that lives is given up for its silence, and how soon one that does not.

    python benchmarks/silence.py

The detector of every connection (`anabranch/net/silence.py`) hears a peer whose messages come with
gaps of about the usual length, and with stalls of five times that now and then; in one of the rows
stalls come in pairs. Time is that of the model, so nothing waits. Written are false alarms in
10,000 rounds (a round is one gap), and, for a peer that falls silent for good after them, how long
that takes to be noticed. The bound on a group's connections is 2 s of silence at least.
"""

from __future__ import annotations

import random
from typing import Any

import common
from anabranch.net.silence import HEARTBEAT_S, Silence

ROUNDS = 10_000
LEAST_S = 2.0
STALL = 5.0  # times the usual gap
SEEDS = 8


class Peer:
    """A detector and the time; looks happen once a heartbeat, as on a connection."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._looked_s = 0.0
        self._silence = Silence(LEAST_S, 0.0)

    def pass_s(self, seconds: float) -> float | None:
        """Let time pass; return how long the peer was silent when it was given up, if it was."""
        until_s = self.now_s + seconds
        while self._looked_s + HEARTBEAT_S <= until_s:
            self._looked_s += HEARTBEAT_S
            if (silent_s := self._silence.look(self._looked_s)) > self._silence.most_s:
                self.now_s = self._looked_s
                return silent_s
        self.now_s = until_s
        return None

    def speak(self) -> None:
        self._silence.heard(self.now_s)


def row(usual_s: float, stall_share: float, pairs: bool, seed: int) -> dict[str, Any]:
    rng = random.Random(f"{usual_s} {stall_share} {pairs} {seed}")
    peer = Peer()
    false_alarms = stalls = 0
    stalled_before = False
    for _ in range(ROUNDS):
        gap_s = usual_s * rng.uniform(0.8, 1.2)
        if rng.random() < stall_share or (pairs and stalled_before):
            stalled_before = not stalled_before
            gap_s = STALL * usual_s
            stalls += 1
        else:
            stalled_before = False
        if peer.pass_s(gap_s) is not None:
            false_alarms += 1
            peer = Peer()  # it connects again
        peer.speak()
    began_s = peer.now_s
    assert peer.pass_s(1e4) is not None
    return {
        "false_alarms": false_alarms,
        "stalls": stalls,
        "noticed_after_s": round(peer.now_s - began_s, 2),
    }


def main() -> None:
    common.no_options(__doc__)
    rows = []
    for usual_s in (0.05, 0.3, 1.0):
        for stall_share, pairs in ((0.0, False), (0.001, False), (0.02, False), (0.02, True)):
            found = [row(usual_s, stall_share, pairs, seed) for seed in range(SEEDS)]
            false_alarms = sum(one["false_alarms"] for one in found)
            noticed_after_s = common.spread([one["noticed_after_s"] for one in found])
            each = {
                "usual_gap_s": usual_s,
                "stall_share": stall_share,
                "stalls_in_pairs": pairs,
                "false_alarms": [one["false_alarms"] for one in found],
                "stalls": [one["stalls"] for one in found],
                "noticed_after_s": noticed_after_s,
            }
            rows.append(each)
            print(
                f"gaps of {usual_s} s, {100 * stall_share:g} % stalls of {STALL:g} times that"
                f"{' in pairs' if pairs else ''}: {false_alarms} false alarms in "
                f"{SEEDS} times {ROUNDS} rounds; silence noticed after "
                f"{noticed_after_s['median']} s"
            )
    common.write(
        "silence", seed=0, rounds=ROUNDS, seeds=SEEDS, least_s=LEAST_S, stall=STALL, rows=rows
    )


if __name__ == "__main__":
    main()
