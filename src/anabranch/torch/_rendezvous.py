"""How the ranks of a process group join a group as its sites, by means of torch's store."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistStoreError

from anabranch._paths import next_free
from anabranch.group import Group
from anabranch.group.blocking_group import join_at
from anabranch.group.place import find as find_place
from anabranch.group.place import flag
from anabranch.net import addresses
from anabranch.net.errors import NetError, RunAborted
from anabranch.torch._sharing import Part, Shared

_log = logging.getLogger("anabranch")
BackendOptions: Any = c10d.Backend.Options
_VARIABLE = "ANABRANCH_{}"
_ONE_MACHINE_BPS = 1e10  # of links within one machine, all alike
_SILENCE_S = 10.0  # a rank may hold the interpreter's lock that long in C code, and be alive
_WRONG = "wrong"  # key in the store: the error of the first rank that failed
_GRACE_S = 2.0  # for another rank to give a better reason than the timeout
_END_S = 10.0  # for a scheduler to end, before its stdin is closed, and before it is killed


class Options(BackendOptions):  # type: ignore[misc]
    """How a process group's ranks become sites: ``init_process_group(..., pg_options=Options())``.

    The environment supplies arguments that are not given: ``ANABRANCH_OVERLAY`` and so on. So a
    script changes only the backend's name.

    Args:
        overlay: the network between ranks: a file or a built-in overlay's name. Rank i is its
            site i, unless ranks name themselves by ``site``. If not given, the links of all pairs
            are assumed equal. They are measured, unless the store's address is loopback: then all
            ranks are on one machine.
        site: this rank's name in the overlay; given by all ranks or by none. If the default process
            group is of another backend, as under HSDP, ranks of one machine may name the same site.
            They are then one site, and share its links.
        keep_plan: whether the overlay's rates are exact. If so, no link is measured, and the first
            plan stays. ``1`` in the environment.
        route: the route of aggregates, as for ``anabranch scheduler --route``.
        log: the event log that rank 0's scheduler creates. A later group's has a number.
        scheduler: host:port of a running scheduler; if not given, rank 0 starts one.
        token: of that scheduler; if not given, rank 0 puts a new secret into the store.
        host: the address at which others connect to this rank. If not given, the address from which
            it reaches the scheduler. If the scheduler is on this machine, only ranks on it can
            connect.
        tls: the folder of this rank's certificate and key, as ``anabranch certs`` makes it. The
            certificate names this rank's site. Rank 0's folder also has the scheduler's.
        insecure: permit addresses off this machine without TLS; ``1`` in the environment.

    Raises:
        ValueError: a variable of the environment is invalid, or ``keep_plan`` comes without an
            overlay; says which.
    """

    def __init__(
        self,
        *,
        overlay: str | None = None,
        site: str | None = None,
        keep_plan: bool | None = None,
        route: str | None = None,
        log: str | None = None,
        scheduler: str | None = None,
        token: str | None = None,
        host: str | None = None,
        tls: str | None = None,
        insecure: bool | None = None,
    ) -> None:
        super().__init__("anabranch", timedelta(minutes=30))
        self.overlay = _given("overlay", overlay)
        self.site = _given("site", site)
        self.route = _given("route", route)
        self.log = _given("log", log)
        self.scheduler = _given("scheduler", scheduler)
        self.token = _given("token", token)
        self.host = _given("host", host)
        self.tls = _given("tls", tls)
        self.insecure = _said("insecure", insecure)
        self.keep_plan = _said("keep_plan", keep_plan)
        if self.keep_plan and self.overlay is None:
            raise ValueError(
                "keep_plan keeps the plan of an overlay, and there is none; set $ANABRANCH_OVERLAY"
            )


def _given(name: str, value: str | None) -> str | None:
    return value if value is not None else os.environ.get(_VARIABLE.format(name.upper())) or None


def _said(name: str, value: bool | None) -> bool:
    return flag(os.environ, _VARIABLE.format(name.upper())) if value is None else value


@dataclass(frozen=True)
class Membership:
    """A rank's membership in the group that its process group made.

    Args:
        group: the group; or a ``Part``, if another rank of this site has joined it.
        names: the sites' names, by rank.
        leave: leaves the group, and waits for a scheduler that this rank started.
        fail: ends the group at all sites, which get the error.
    """

    group: Group | Part
    names: tuple[str, ...]
    leave: Callable[[], None]
    fail: Callable[[Exception], None]

    def close(self) -> None:
        """Leave the group, and end its scheduler once all have left."""
        self.leave()


def _leave(whole: Group | Shared, scheduler: subprocess.Popen[str] | None) -> None:
    try:
        whole.close()
    finally:
        if scheduler is not None:
            end(scheduler)


def end(scheduler: subprocess.Popen[str]) -> None:
    """Wait until the scheduler that this rank started has ended; if it does not, kill it."""
    assert scheduler.stdin is not None
    try:
        scheduler.wait(_END_S)  # it ends when the last site has left
    except subprocess.TimeoutExpired:
        scheduler.stdin.close()
        try:
            scheduler.wait(_END_S)
        except subprocess.TimeoutExpired:
            scheduler.kill()
            scheduler.wait()
    finally:
        for stream in (scheduler.stdin, scheduler.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def telling(store: Any, rank: int, size: int) -> Iterator[None]:
    """While ranks meet, tell the other ranks of an error at this one.

    Args:
        store: shared by all ranks, for this group alone.
        rank: this process's rank, in [0, size).
        size: the number of ranks.
    """
    first = ""
    try:
        yield
    except Exception as error:
        # The store itself may fail; the error is raised below in any case. In most cases rank 0
        # holds the store. So rank 0 waits here until the others have read the reason and failed.
        with suppress(Exception):
            said = f"rank {rank} failed: {error}".encode()
            first = store.compare_set(_WRONG, "", said).decode()
            store.compare_set(f"site{rank}", "", msgspec.json.encode(_Entry(wrong=first)))
            if rank:
                store.set(f"failed{rank}", b"")
            else:
                store.wait([f"failed{each}" for each in range(1, size)], timedelta(seconds=_END_S))
        if isinstance(error, DistStoreError) and first and not first.startswith(f"rank {rank} "):
            raise RunAborted(first) from error  # the other rank's error caused this one
        raise


def _has_failed(store: Any, timeout: timedelta) -> Callable[[], str | None]:
    """Return a function that returns why ranks cannot meet: a failed rank, or the timeout.

    It returns None while they still can.
    """
    limit_s = timeout.total_seconds()
    until_s = time.monotonic() + limit_s + _GRACE_S

    def found() -> str | None:
        if store.check([_WRONG]):
            return cast(str, store.get(_WRONG).decode())
        if time.monotonic() > until_s:
            return (
                f"not all ranks have joined in {limit_s:g} s, the timeout of init_process_group; "
                "the scheduler's lines say which it waits for"
            )
        return None

    return found


def meet(store: Any, rank: int, size: int, options: Options, timeout: timedelta) -> Membership:
    """Make a group of all ranks.

    Args:
        store: shared by all ranks, for this group alone.
        rank: this process's rank, in [0, size).
        size: the number of ranks.
        options: this rank's options.
        timeout: how long to wait for the other ranks.

    Raises:
        ValueError: options are invalid, or do not fit other ranks'; says which.
        RunAborted: the scheduler does not start, or refuses this rank; or another rank has failed,
            or does not come in time.
    """
    names = _names(store, rank, size, options)
    has_failed = _has_failed(store, timeout)
    group, _, scheduler = _join(store, rank == 0, names, names[rank], options, timeout, has_failed)

    def fail(error: Exception) -> None:
        group.__exit__(type(error), error, None)

    return Membership(group, names, partial(_leave, group, scheduler), fail)


def _join(
    store: Any,
    starts: bool,
    names: Sequence[str],
    name: str,
    options: Options,
    timeout: timedelta,
    has_failed: Callable[[], str | None],
) -> tuple[Group, str, subprocess.Popen[str] | None]:
    """Join as a site; if ``starts``, start the scheduler first.

    Returns:
        The group, its token, and the scheduler's process; None if this rank started none.
    """
    scheduler = None
    here = reached_at(store)
    if starts:
        try:
            scheduler, said = _scheduler(names, options, here)
        except (RunAborted, ValueError) as error:
            store.set("scheduler", msgspec.json.encode(["", "", str(error)]))
            raise
        store.set("scheduler", msgspec.json.encode(said))
    try:
        address, token, wrong = msgspec.json.decode(store.get("scheduler"))
        if wrong:
            raise RunAborted(f"there is no scheduler: {wrong}")
        if options.scheduler is None:
            check_reaches(addresses.parse(address)[0], here)
        token = options.token or token
        place = find_place(
            os.environ,
            scheduler=address,
            site=name,
            token=token,
            host=options.host,
            tls=options.tls,
            insecure=options.insecure,
        )
        # As over gloo, exchange NaN and infinities: a GradScaler looks for them at every rank.
        group = join_at(
            place,
            patience_s=timeout.total_seconds(),
            gives_up=has_failed,
            say=partial(_log.warning, "%s: %s", name),
            on_nan="allow",
        )
    except BaseException:
        if scheduler is not None:
            scheduler.kill()
            end(scheduler)
        raise
    return group, token, scheduler


class _Site:
    """This process's access to its site's membership, shared by its process groups.

    Args:
        world: the store of all ranks, without keys of earlier beginnings.

    Attributes:
        world: see above.
        shared: serves the site's other ranks, if this process has joined for the site; else None.
        leaves: leaves the group; called with the last process group.
        uses: the number of this process's process groups.
    """

    here: _Site | None = None

    def __init__(self, world: Any) -> None:
        self.world: Any = c10d.PrefixStore("anabranch/", world)
        self.shared: Shared | None = None
        self.leaves: Callable[[], None] = _nothing
        self.uses = 0

    def leave(self) -> None:
        """End the use by one process group; the last one leaves the group."""
        self.uses -= 1
        if not self.uses:
            _Site.here = None
            self.leaves()


def _nothing() -> None:
    """Do nothing: another rank has joined for this site, and leaves."""


def share(
    begin: Callable[[], Any],
    store: Any,
    rank: int,
    size: int,
    options: Options,
    timeout: timedelta,
) -> Membership:
    """Make a process group over sites that each have several ranks, in other process groups.

    Args:
        begin: returns the store of all ranks, without keys of earlier beginnings. It is called if
            this process has no ``_Site`` yet.
        store, rank, size, timeout: as for :func:`meet`.
        options: this rank's options, with a ``site``.

    Raises:
        ValueError, RunAborted: as for :func:`meet`; or process groups have different sites, or
            ranks of one site are on several machines.
    """
    assert options.site is not None
    if _Site.here is None:
        _Site.here = _Site(begin())
    here, names = _Site.here, _names(store, rank, size, options)
    world = here.world
    if rank == 0:
        store.set("channel", str(world.add("channels", 1) - 1))
    channel = int(store.get("channel"))
    all_names = msgspec.json.decode(world.compare_set("names", "", msgspec.json.encode(names)))
    if sorted(all_names) != sorted(names):
        raise ValueError(
            f"this process group has the sites {sorted(names)} and another has "
            f"{sorted(all_names)}; each process group needs a rank of every site"
        )
    site, me = options.site, str(os.getpid()) + secrets.token_hex(4)
    if not here.uses and world.compare_set(f"first of {site}", "", me).decode() == me:
        starts = world.compare_set("starts", "", me).decode() == me
        try:
            has_failed = _has_failed(store, timeout)
            group, token, scheduler = _join(
                world, starts, all_names, site, options, timeout, has_failed
            )
        except (ValueError, NetError) as error:
            world.set(f"at {site}", msgspec.json.encode(["", "", str(error)]))
            raise
        here.shared = Shared(group, token)
        here.leaves = partial(_leave, here.shared, scheduler)
        world.set(f"at {site}", msgspec.json.encode([here.shared.address, token, ""]))
    here.uses += 1
    if here.shared is not None:
        return Membership(here.shared.channel(channel), names, here.leave, here.shared.fail)
    address, token, wrong = msgspec.json.decode(world.get(f"at {site}"))
    if wrong:
        raise RunAborted(f"the first rank of {site} has not joined: {wrong}")
    part = Part(address, token, channel)

    def leave() -> None:
        part.close()
        here.leave()

    return Membership(part, names, leave, part.fail)


class _Entry(msgspec.Struct, omit_defaults=True):
    """A rank's entry in the store before ranks meet: its site, or its error."""

    site: str = ""
    has_tls: bool = False
    wrong: str = ""


_entry_decoder = msgspec.json.Decoder(_Entry)


def _entry_of(store: Any, rank: int) -> _Entry:
    try:
        said = store.get(f"site{rank}")
    except DistStoreError as error:
        raise RunAborted(f"rank {rank} has not called init_process_group: {error}") from error
    return _entry_decoder.decode(said)


def _names(store: Any, rank: int, size: int, options: Options) -> tuple[str, ...]:
    """Return the sites' names by rank, which are the same at every rank."""
    mine = _Entry(options.site or "", has_tls=options.tls is not None)
    store.set(f"site{rank}", msgspec.json.encode(mine))
    all_said = [_entry_of(store, each) for each in range(size)]
    for each in all_said:
        if each.wrong:
            raise RunAborted(each.wrong)
    has_tls = [each.has_tls for each in all_said]
    if any(has_tls) and not all(has_tls):
        raise ValueError(
            f"rank {has_tls.index(True)} has a certificate and rank {has_tls.index(False)} has "
            "none; set $ANABRANCH_TLS for all ranks or for none"
        )
    said = [each.site for each in all_said]
    if any(said) and not all(said):
        raise ValueError(
            f"rank {said.index('')} does not name its site and others do; set $ANABRANCH_SITE for "
            "all ranks or for none"
        )
    for name in said:
        if "," in name:
            raise ValueError(
                f"a site is named {name!r}; $ANABRANCH_SITE is one name, without commas"
            )
        if name and said.count(name) > 1:
            one = said.index(name)
            raise ValueError(
                f"ranks {one} and {said.index(name, one + 1)} both say that they are site {name!r}"
            )
    # Only rank 0 reads the overlay's file; the others get its names from the store.
    if rank == 0:
        names = said if all(said) else _overlay_names(size, options)
        store.set("names", msgspec.json.encode(names))
    found: list[str] = msgspec.json.decode(store.get("names"))
    if isinstance(found, str):
        raise ValueError(found)
    return tuple(found)


def _overlay_names(size: int, options: Options) -> list[str] | str:
    """Return the names of an overlay's sites, or an error in words."""
    if options.overlay is None:
        return [f"rank{each}" for each in range(size)]
    from anabranch import overlay as overlays

    try:
        sites = overlays.load(options.overlay).sites
    except (ValueError, OSError) as error:
        return f"overlay {options.overlay}: {error}"
    if len(sites) != size:
        return (
            f"overlay {options.overlay} has {len(sites)} sites and there are {size} ranks; each "
            "rank is one site"
        )
    return [site.name for site in sites]


def _scheduler(
    names: Sequence[str], options: Options, host: str
) -> tuple[subprocess.Popen[str] | None, list[str]]:
    """Start a scheduler, unless one is given.

    Returns:
        Its process, or None; and [address, token, ""], the store's entry of a scheduler without an
        error. The token is empty if the scheduler is given.
    """
    if options.scheduler is not None:
        if not options.token:
            raise ValueError(
                "a scheduler is given without a token; set $ANABRANCH_TOKEN to its own"
            )
        return None, [options.scheduler, "", ""]
    token = options.token or secrets.token_hex(16)
    command = [sys.executable, "-m", "anabranch", "scheduler", "--stop-with-stdin"]
    command += ["--listen", addresses.show((host, 0)), "--least-sites", str(len(names))]
    command += ["--silence", str(_SILENCE_S)]
    if options.overlay is not None:
        command += ["--overlay", options.overlay, *(["--keep-plan"] if options.keep_plan else [])]
    else:
        command += ["--sites", ",".join(names)]
        if addresses.is_loopback(host):
            command += ["--links-bps", str(_ONE_MACHINE_BPS)]
    if options.route is not None:
        command += ["--route", options.route]
    if options.log is not None:
        command += ["--log", str(next_free(Path(options.log)))]
    if options.tls is not None:
        command += ["--tls", options.tls]
    elif options.insecure:
        command += ["--insecure"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "ANABRANCH_TOKEN": token},
        start_new_session=True,  # Ctrl-C reaches the ranks alone; once they leave, it ends
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        process.wait()
        end(process)
        raise RunAborted(
            f"its process ended with status {process.returncode} before it listened; its output, "
            "beside rank 0's, says why"
        )
    return process, [address, token, ""]


def check_reaches(scheduler: str, here: str) -> None:
    """Check that this rank can reach the scheduler that another rank has started.

    Args:
        scheduler: the host on which it listens.
        here: the address of this machine from which it reaches the ranks' store.

    Raises:
        RunAborted: the scheduler listens on the loopback of another machine.
    """
    if addresses.is_loopback(scheduler) and not addresses.is_loopback(here):
        raise RunAborted(
            f"rank 0's scheduler listens on {scheduler}, which only rank 0's own machine reaches: "
            "that machine resolves its own name to its loopback (see its /etc/hosts); give an "
            "address that all machines use to --master-addr ($MASTER_ADDR)"
        )


def reached_at(store: Any) -> str:
    """Return the address of this machine from which it reaches its store."""
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    host = store.host if isinstance(store, c10d.TCPStore) else "127.0.0.1"
    if host == "localhost" or addresses.is_loopback(host):
        return "127.0.0.1"
    found = socket.getaddrinfo(host, store.port, type=socket.SOCK_DGRAM)
    family, kind, _, _, where = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # sends nothing: the kernel only looks up the route
        return cast(str, probe.getsockname()[0])
