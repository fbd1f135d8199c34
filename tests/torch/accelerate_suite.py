"""Accelerate's own tests of its wheel over a backend: `test_script`, `test_ops`, `test_sync`.

    python -m tests.torch.accelerate_suite BACKEND RANKS [NAME ...]

The tests call `Accelerator()`, which uses the process group that is there already.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from contextlib import ExitStack
from unittest import mock

import torch.distributed as dist

from tests.torch.ranks import run_ranks

NAMES = ("test_ops", "test_sync", "test_script")
# Written for two ranks, or for numbers that divide 8: with three they fail over gloo, too.
OF_TWO = {
    "test_script": (
        "test_split_between_processes_tensor",
        "dl_preparation_check",
        "central_dl_preparation_check",
    )
}


def run(*names: str) -> str:
    """Run Accelerate's scripts at this rank, in turn; return what backend their group was of."""
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    # What torchrun and `accelerate launch --cpu` set.
    os.environ.update(LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size, ACCELERATE_USE_CPU="true")
    from accelerate.state import AcceleratorState, GradientState, PartialState

    used: str = dist.get_backend()
    for name in names:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        assert PartialState(cpu=True).num_processes == int(size)
        script = importlib.import_module(f"accelerate.test_utils.scripts.{name}")
        with ExitStack() as patched:
            # `run_ranks` does.
            patched.enter_context(mock.patch.object(PartialState, "destroy_process_group"))
            for each in OF_TWO.get(name, ()) if int(size) > 2 else ():
                patched.enter_context(mock.patch.object(script, each))
            script.main()
        print(f"{name}: done at rank {rank}", flush=True)
    return used


def main(backend: str, size: int, names: list[str]) -> None:
    """Run scripts one after the other, and say what became of each."""
    failed = []
    for name in names or NAMES:
        begun_s = time.perf_counter()
        try:
            used = run_ranks(run, size, name, backend=backend)
        except AssertionError as error:
            failed.append(name)
            print(error)
            said = "failed"
        else:
            assert used == [backend] * size
            said = "passed"
        took_s = time.perf_counter() - begun_s
        print(f"{name} over {backend}, {size} ranks: {said}, {took_s:.0f} s", flush=True)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
