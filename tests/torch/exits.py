"""A program that runs pairs of ranks, each of which ends as any program does.

``python -m tests.torch.exits COUNT`` prints the runs in which a rank did not end with status 0.
Ranks are forks of a process that has imported PyTorch, and leave by the interpreter's own end:
multiprocessing's processes skip that, and with it what threads of C++ do meanwhile. Their
scheduler is forked, too: the command takes a second of a core to start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

import anabranch.torch.backend  # noqa: F401

from . import scheduler_forked


def _exchanges() -> None:
    dist.all_reduce(torch.ones(3))
    dist.all_gather_object([None] * 2, 1)
    dist.barrier()
    dist.destroy_process_group()


def _calls_gloo() -> None:
    dist.all_reduce(torch.ones(3).double())
    dist.all_gather([torch.zeros(100_000) for _ in range(2)], torch.ones(100_000))
    dist.destroy_process_group()


def _does_not_destroy() -> None:
    dist.all_reduce(torch.ones(3).double())
    dist.all_reduce(torch.ones(3))


def _fails() -> None:
    with suppress(ValueError):
        dist.all_reduce(torch.ones(3 + dist.get_rank()).double())
    dist.destroy_process_group()


def _is_late() -> None:
    dist.group.WORLD.set_timeout(timedelta(seconds=0.2))
    with suppress(RuntimeError):
        dist.recv(torch.ones(3), 1 - dist.get_rank())
    dist.destroy_process_group()


def _is_interrupted() -> None:
    if dist.get_rank() == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            dist.all_reduce(torch.ones(3).double())
    else:
        with suppress(Exception):
            dist.recv(torch.ones(3), 0)
    dist.destroy_process_group()


def _leaves_works() -> None:
    dist.all_reduce(torch.ones(100_000).double(), async_op=True)
    dist.new_group().set_timeout(timedelta(seconds=5))
    dist.destroy_process_group()


PROGRAMS: list[Callable[[], None]] = [
    *(_exchanges, _calls_gloo, _does_not_destroy),
    *(_fails, _is_late, _is_interrupted, _leaves_works),
]


def _run(number: int) -> list[int]:
    """Return the exit status of each of two ranks."""
    program = PROGRAMS[number % len(PROGRAMS)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        process = os.fork()
        if not process:
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ.update(where, RANK=str(rank), WORLD_SIZE="2")
            dist.init_process_group("anabranch", timeout=timedelta(seconds=60))
            program()
            sys.exit()
        ranks.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]


def main() -> None:
    scheduler_forked.use()
    began_s = time.monotonic()
    count = int(sys.argv[1])
    for number in range(count):
        statuses = _run(number)
        if any(statuses):
            print(f"{PROGRAMS[number % len(PROGRAMS)].__name__}: {statuses}", flush=True)
    print(f"{count} runs in {time.monotonic() - began_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
