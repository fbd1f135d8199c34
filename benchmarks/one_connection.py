"""What one connection under CUBIC gets of a long link that loses packets. Needs root and iproute2.

    python benchmarks/one_connection.py

Two sites in network namespaces, a link each way as fast as NetStorm's fastest (155 Mbit/s), with
its latency (30 ms) and loss (0.02 %); one connection each way sends all the time. Beside it stands
what RFC 9438's response function says, by which `python -m papers netstorm/fig13` goes.
"""

from __future__ import annotations

import argparse
from statistics import median

import common
import emulation
from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.emulate import emulated
from papers.netstorm.fig13 import cubic_bps

RATE_BPS, LATENCY_S, LOSS = 155e6, 0.03, 0.0002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each repeat")
    options = parser.parse_args()
    links = (Link(0, 1, RATE_BPS, LATENCY_S, LOSS), Link(1, 0, RATE_BPS, LATENCY_S, LOSS))
    overlay = Overlay("one-link", (Site("one"), Site("other")), links)
    shares: list[float] = []
    floods = []
    for _ in range(options.repeats):
        with emulated(overlay, delays=True) as wan:
            found = emulation.flooded(wan, overlay, "cubic", options.seconds)
            way = wan.way
        floods.append(found)
        shares += [float(found[end]) for end in ("worst", "best")]  # type: ignore[arg-type]
        print(f"{shares[-2]:.3f} and {shares[-1]:.3f} of the rate", flush=True)
    by_rfc = cubic_bps(2 * LATENCY_S, LOSS) / RATE_BPS
    print(
        f"{median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f}); by RFC 9438 {by_rfc:.3f}"
    )
    common.write(
        "one_connection",
        seed=0,
        rate_bps=RATE_BPS,
        latency_s=LATENCY_S,
        loss=LOSS,
        congestion_control="cubic",
        way=way,
        seconds=options.seconds,
        share={"median": median(shares), "all": sorted(shares), "rfc_9438": by_rfc},
        floods=floods,
    )


if __name__ == "__main__":
    main()
