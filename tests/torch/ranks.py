"""Functions that run at every rank of a process group, each rank a process of its own."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from tests.forked import forking
from tests.torch import scheduler_forked

_LIMIT_S = 100.0


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    backend: str = "anabranch",
    environment: Mapping[str, str] | None = None,
    limit_s: float = _LIMIT_S,
) -> list[Any]:
    """Return what ``function(*arguments)`` returns at each rank, with a process group made.

    Args:
        function: at the top of a module.
        size: how many ranks.
        arguments: for all ranks alike.
        backend: of the process group.
        environment: variables of all ranks; a value may hold ``{rank}``.
        limit_s: how long they may take.

    Raises:
        AssertionError: it raised at a rank; with its traceback.
    """
    context = forking()  # 2.4 s of a core for each rank otherwise
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes, pipes = [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            variables = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
            }
            for name, value in (environment or {}).items():
                variables[name] = value.format(rank=rank)
            process = context.Process(
                target=_run, args=(theirs, function, arguments, backend, variables)
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        told = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(limit_s), f"rank {rank} has not ended"
            try:
                told.append(pickle.loads(pipe.recv_bytes()))
            except EOFError:
                told.append((False, "its process died"))
        wrong = [
            f"rank {rank}:\n{what}" for rank, (is_well, what) in enumerate(told) if not is_well
        ]
        assert not wrong, "\n".join(wrong)
        return [what for _, what in told]
    finally:
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def _run(
    pipe: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    backend: str,
    variables: dict[str, str],
) -> None:
    os.environ.update(variables)
    import torch.distributed as dist

    scheduler_forked.use()
    try:
        dist.init_process_group(backend)
        result = function(*arguments)
        dist.destroy_process_group()
    except BaseException:
        told = False, traceback.format_exc()
    else:
        told = True, result
    pipe.send_bytes(pickle.dumps(told))  # tensors by value: this process ends before they are read
