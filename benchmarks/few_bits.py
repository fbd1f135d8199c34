"""Averages whose changes travel in few bits, over emulated links: seconds, bytes and CPU seconds.

    sudo chrt -r 10 python benchmarks/few_bits.py                        # all cases: five minutes
    sudo python benchmarks/few_bits.py --only "2 sites, 1 Gbit/s" --dry

A process a site, each in a network namespace, holds one model of random changes. It is averaged by
each format in turn, always with DiLoCo's outer optimiser; gloo sums as many float32, which is no
average yet. Links have no latency, those of ``internet2-9`` their rates. An average's seconds are
those until the last site has it. CPU seconds are those of all sites. Bytes are those of a buffer,
as it travels up and down; buffers and trailers beside it are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median
from typing import Any, cast

import common
from anabranch.overlay import Overlay
from anabranch.plan import limit_rate_bps
from anabranch.train.averaging import FORMATS
from group import schedule
from wire_cost import elements_of, overlay_of, started

CASES = ["2 sites, 1 Gbit/s", "3 sites, 1 Gbit/s", "internet2-9"]
WAYS = ["gloo", *FORMATS]


def take_part(options: argparse.Namespace) -> None:
    """Average in each format in turn; print the seconds and CPU seconds of each average."""
    import torch
    import torch.distributed as dist

    import anabranch

    torch.set_num_threads(1)
    with anabranch.join(options.scheduler, options.name, host=options.host, insecure=True) as group:
        os.environ["WORLD_SIZE"] = str(group.size)
        dist.init_process_group("gloo")
        change = torch.randn(options.elements, generator=torch.Generator().manual_seed(group.rank))
        summed = torch.empty(options.elements)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for way in WAYS:
            model = torch.zeros(options.elements)
            average = None
            if way != "gloo":
                average = group.average(
                    [model], every=1, outer=anabranch.Outer(), wire=cast("Any", way)
                )
            for number in range(options.rounds + 2):
                model += change
                summed.copy_(change)
                dist.barrier()
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
                if average is None:
                    dist.all_reduce(summed)
                else:
                    average.step()
                took = time.perf_counter() - began_s, time.process_time() - began_cpu_s
                dist.barrier()
                if number > 1:  # the first open connections, and get a plan for their size
                    found[way].append(took)
            group.settle()
        print(json.dumps(found), flush=True)
        dist.barrier()
        dist.destroy_process_group()


def compare(case: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each format."""
    elements = elements_of(case, options.seconds)
    with started(__file__, case, elements, options.rounds) as (_, running):
        answers = [json.loads(each.communicate()[0].splitlines()[-1]) for each in running]
    return figures(case, overlay_of(case), elements, answers)


def figures(
    case: str, overlay: Overlay, elements: int, answers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for each way, and print it."""
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        rounds = [*zip(*(own[way] for own in answers), strict=True)]
        seconds = [max(took_s for took_s, _ in each) for each in rounds]
        cpu_s = [sum(used_s for _, used_s in each) for each in rounds]
        wire = FORMATS["float32" if way == "gloo" else way]
        bytes_ = wire.bytes_of(wire.padded(elements))
        limit_s = 8 * bytes_ / limit_rate_bps(overlay)
        row = {
            "links": case,
            "way": "float32 over gloo" if way == "gloo" else way,
            "elements": elements,
            "seconds": common.spread(seconds),
            "buffer_mb": bytes_ / 1e6,
            "limit_s": limit_s,
            "cpu_s": common.spread(cpu_s),
            "cpu_s_a_gigabyte": median(cpu_s) / (2 * (overlay.size - 1) * 4 * elements / 1e9),
        }
        rows.append(row)
        print(
            f"{case}, {way}: {median(seconds):.3f} s, limit {limit_s:.3f}, {bytes_ / 1e6:.2f} MB, "
            f"{median(cpu_s):.2f} CPU s",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.8, help="of a link's rate in float32")
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES, help="of the cases")
    parser.add_argument("--result", default="few_bits", help="name of the file")
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--elements", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        schedule(options.serve, overlay_of(*options.only))
        return
    if options.site:
        take_part(options)
        return
    rows = [row for case in options.only for row in compare(case, options)]
    if not options.dry:
        common.write(options.result, seed=0, rounds=options.rounds, rows=rows)


if __name__ == "__main__":
    main()
