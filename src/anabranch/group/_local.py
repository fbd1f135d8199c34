"""A whole group on this machine by one call, for tests and notebooks."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import pickle
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from anabranch.group import _by_value
from anabranch.group._exit import leave_together
from anabranch.group._spawned import run
from anabranch.group._thread import LoopThread
from anabranch.group.blocking_group import Group, join_at
from anabranch.group.place import Place
from anabranch.group.service import Service
from anabranch.log import events
from anabranch.net.addresses import show
from anabranch.net.errors import RunAborted
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Plan
from anabranch.scheduler.deal import ByShare
from anabranch.scheduler.server import Scheduler

_LISTEN = "127.0.0.1", 0
_RATE_BPS = 1e10  # of each link: a placeholder, since nothing limits the links to it
_POLL_S = 0.2
_MERCY_S = 5.0  # for processes to end, before they are killed


class Silent:
    """A log that writes nothing."""

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""

    def write(self, *happened: events.Event) -> None:
        """See :class:`anabranch.scheduler.run.Log`."""


def _complete(sites: int) -> Overlay:
    links = [
        Link(source, target, _RATE_BPS, basis="assumed")
        for source in range(sites)
        for target in range(sites)
        if source != target
    ]
    return Overlay("local", tuple(Site(f"site{index}") for index in range(sites)), tuple(links))


@contextmanager
def _serving(service: Service) -> Iterator[tuple[str, str]]:
    """Run a scheduler in a thread; yield its address and the group's token."""
    service = service.listening_at(_LISTEN)
    token = secrets.token_hex(16)
    thread = LoopThread("anabranch scheduler")

    async def start() -> tuple[Scheduler, str]:
        scheduler = service.scheduler(service.network(), token, Silent())
        return scheduler, show(await scheduler.listen(_LISTEN))

    try:
        scheduler, address = thread.run(start())
    except BaseException:
        thread.close()
        raise

    async def end() -> None:
        scheduler.abort("the block that made the group was left")
        await scheduler.close()

    try:
        yield address, token
    finally:
        if not sys.is_finalizing():  # during that, the loop's thread no longer runs
            thread.run(end())
            thread.close()


@contextmanager
def local(sites: int | Service = 2) -> Iterator[tuple[Group, ...]]:
    """Make a group of sites in this process, over real connections, and leave it at the end.

    A call at one site waits for the others' calls. So make them from one thread for each site, or
    with ``async_op=True`` and wait afterwards.

    Args:
        sites: how many; or a :class:`Service`, whose overlay names them.

    >>> import numpy as np
    >>> with local(2) as (one, other):
    ...     a, b = np.zeros(3, np.float32), np.ones(3, np.float32)
    ...     for handle in [one.all_reduce(a, async_op=True), other.all_reduce(b, async_op=True)]:
    ...         handle.wait()
    >>> a.tolist(), b.tolist()
    ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    """
    service = _service(sites)
    names = service.overlay.names
    with _serving(service) as (address, token):
        places = [Place(scheduler=address, site=name, token=token) for name in names]
        with ThreadPoolExecutor(len(names)) as pool:  # each join waits for the others
            groups = tuple(pool.map(join_at, places))
        members = [group._member for group in groups]
        try:
            yield groups
        except BaseException as error:
            leave_together(members, error)
            raise
        leave_together(members, None)


def _service(sites: int | Service) -> Service:
    if isinstance(sites, Service):
        return sites
    if sites < 1:
        raise ValueError(f"a group of {sites} sites; give 1 at least")
    return Service(_complete(sites), awareness=None, deal=ByShare())


def spawn(
    function: Callable[..., Any], sites: int | Service = 2, arguments: Sequence[Any] = ()
) -> list[Any]:
    """Run a function at every site of a group, each in a separate process on this machine.

    Args:
        function: called as ``function(group, *arguments)``. It may be a lambda, a closure, or a
            function of a notebook or of ``python -``; then it is sent with all that it refers to.
            In a script, define it at the top level, and call ``spawn`` under ``if __name__ ==
            "__main__"``, since each process imports the script.
        sites: how many; or a :class:`Service`, whose overlay names them.
        arguments: the same for every site; each site gets a copy.

    Returns:
        The result of each call, by rank. Tensors and arrays of any size are copied.

    Raises:
        TypeError: the function or an argument cannot be sent to another process; says why.
        RunAborted: a call failed or a process died; names the site, with its traceback.
    """
    try:
        sent = _by_value.dumps((function, tuple(arguments)))
    except Exception as error:
        raise TypeError(
            f"the function or an argument cannot be sent to another process: {error}; make locks, "
            "connections and open files inside the function, since they cannot be pickled"
        ) from error
    service = _service(sites)
    names = service.overlay.names
    context = multiprocessing.get_context("spawn")
    with _serving(service) as (address, token):
        processes: list[Any] = []
        pipes: list[Any] = []
        try:
            for name in names:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=run, args=(theirs, sent, address, name, token))
                with _by_value.hide_main_file():
                    process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            return _results(names, processes, pipes)
        finally:
            until_s = time.monotonic() + _MERCY_S
            for process in processes:
                process.join(max(0.0, until_s - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join()
            for pipe in pipes:
                pipe.close()


def _results(names: Sequence[str], processes: list[Any], pipes: list[Any]) -> list[Any]:
    results: dict[int, Any] = {}
    hearsay = ""
    waiting = dict(enumerate(pipes))
    while waiting:
        gone = [index for index in waiting if processes[index].exitcode is not None]
        ready = multiprocessing.connection.wait(waiting.values(), 0.0 if gone else _POLL_S)
        for index in [i for i, pipe in waiting.items() if pipe in ready or i in gone]:
            pipe = waiting.pop(index)
            try:
                if not pipe.poll():  # a child of the dead process may keep the pipe open
                    raise EOFError
                failed, told = pipe.recv()
            except EOFError:
                raise RunAborted(f"the process of {names[index]} died") from None
            if failed is None:
                try:
                    results[index] = pickle.loads(told)
                except Exception as error:
                    what = "".join(traceback.format_exception(error))
                    raise RunAborted(f"what {names[index]} returned fails here:\n{what}") from None
            elif failed:
                hearsay = hearsay or f"{names[index]} failed:\n{told}"
            else:
                raise RunAborted(f"{names[index]} failed:\n{told}")
    if hearsay:
        raise RunAborted(hearsay)
    return [results[index] for index in range(len(names))]
