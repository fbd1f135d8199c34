"""Ask SimGrid for the finish times that `test_fluid.py` compares ours with.

Not run by the tests. It needs SimGrid 3.32 and its Python bindings, as Debian 12 has them (package
`python3-simgrid`), and runs in seconds:

    /usr/bin/python3 tests/sim/simgrid_reference.py links
    /usr/bin/python3 tests/sim/simgrid_reference.py ports

SimGrid's model is CM02 with all that sets it apart from plain max-min sharing taken out: no
latency, no bound by a TCP window, no loss by protocol, no weights, no traffic of acknowledgements.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

SITES = 9
FLOWS = 1200
OPTIONS = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "network/crosstraffic:0",
    "surf/precision:1e-12",
    "maxmin/precision:1e-12",
)


class Transfer(NamedTuple):
    """A flow of the workload; `resources` are keys of its capacities."""

    start_s: float
    source: int
    target: int
    resources: tuple[str, ...]
    size_bits: int


def workload(kind: str) -> tuple[dict[str, float], list[Transfer]]:
    """Return capacities, bit/s, and transfers between 9 sites with a link for every ordered pair.

    With `links`, only site 0's uplink and site 1's downlink are limited too; with `ports`, the
    uplinks and downlinks of all sites are, below what their links could carry.
    """
    draw = _integers()
    capacities_bps = {}
    for source in range(SITES):
        for target in range(SITES):
            if source != target:
                capacities_bps[f"{source}>{target}"] = 1e6 * (20 + next(draw) % 136)
    for site in range(SITES):
        up_bps, down_bps = (1e6 * (100 + next(draw) % 300) for _ in range(2))
        if kind == "ports" or site == 0:
            capacities_bps[f"up {site}"] = up_bps
        if kind == "ports" or site == 1:
            capacities_bps[f"down {site}"] = down_bps
    transfers = []
    for _ in range(FLOWS):
        source = next(draw) % SITES
        target = (source + 1 + next(draw) % (SITES - 1)) % SITES
        used = (f"up {source}", f"{source}>{target}", f"down {target}")
        size_bits = 1000 * (1 + next(draw) % 32000)
        start_s = next(draw) % 1024 / 256.0
        resources = tuple(key for key in used if key in capacities_bps)
        transfers.append(Transfer(start_s, source, target, resources, size_bits))
    return capacities_bps, transfers


def _integers() -> Iterator[int]:
    """Yield the upper bits of a linear congruential generator, constants of *Numerical Recipes*."""
    state = 20240229
    while True:
        state = (1664525 * state + 1013904223) % 2**32
        yield state >> 8


def main(kind: str) -> None:
    """Print the makespan and every 150th finish time, in seconds.

    SimGrid counts bytes where we count bits, all through.
    """
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

    engine = Engine(["reference", *(f"--cfg={option}" for option in OPTIONS)])
    capacities_bps, transfers = workload(kind)
    zone = NetZone.create_full_zone("overlay")
    hosts = [zone.create_host(f"site {site}", 1e9) for site in range(SITES)]
    links = {key: zone.create_link(key, rate).seal() for key, rate in capacities_bps.items()}
    for source, target, resources in {t[1:4] for t in transfers}:
        ends = hosts[source].netpoint, hosts[target].netpoint
        zone.add_route(*ends, None, None, [LinkInRoute(links[key]) for key in resources], False)
    zone.seal()
    finishes_s = [0.0] * len(transfers)

    def carry(index: int, transfer: Transfer) -> None:
        this_actor.sleep_until(transfer.start_s)
        Comm.sendto(hosts[transfer.source], hosts[transfer.target], transfer.size_bits)
        finishes_s[index] = Engine.clock

    for index, transfer in enumerate(transfers):
        Actor.create(f"flow {index}", hosts[transfer.source], carry, index, transfer)
    engine.run()
    print(f"makespan {max(finishes_s)!r}")
    for index in range(0, FLOWS, 150):
        print(f"{index}: {finishes_s[index]!r},")


if __name__ == "__main__":
    main(sys.argv[1])
