"""How the ranks of a process group find one another as sites of a group: over torch's store."""

from __future__ import annotations

import logging
import math
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
_ONE_MACHINE_BPS = 1e10  # of links within it, which all are alike
_SILENCE_S = 10.0  # ranks hold the interpreter's lock in long calls of C code, and are not gone
_WRONG = "wrong"  # in the store: what the first rank that failed said
_GRACE_S = 2.0  # for those who know more of what is wrong than that the time is over
_END_S = 10.0  # for a scheduler to end by itself


class Options(BackendOptions):  # type: ignore[misc]
    """How a process group's ranks become sites: ``init_process_group(..., pg_options=Options())``.

    An argument that is not given is taken from the environment, ``ANABRANCH_OVERLAY`` and so on,
    so that a script changes nothing but the backend's name.

    Args:
        overlay: the network between ranks: a file or a built-in overlay's name. Rank i is its
            site i unless ranks name themselves by ``site``. Not given, all pairs are taken for
            equal, and measured unless the store is on this machine, and so are all ranks.
        site: this rank's name in the overlay; given by all ranks or by none. Where the default
            process group is of another backend, as under HSDP, ranks of one machine may name the
            same site: they are one participant, and share its links.
        keep_plan: the overlay's rates are facts: no link is measured, and the first plan stays;
            ``1`` in the environment.
        route: where aggregates travel, as for ``anabranch scheduler --route``.
        log: the event log that rank 0's scheduler creates; of a second group, with a number.
        scheduler: host:port of a scheduler that runs already; else rank 0 starts one.
        token: of that scheduler; a fresh secret goes through the store otherwise.
        host: where this rank takes connections; otherwise the address from which it reaches the
            scheduler, or this machine alone where the scheduler is on it.
        tls: the folder of this rank's certificate and key, whose name is its site's, as
            ``anabranch certs`` makes it. Rank 0's also has the scheduler's.
        insecure: allow addresses off this machine without that; ``1`` in the environment.
        switch_interval_s: see :func:`anabranch.join`; beside Python threads that compute without a
            pause, 0.0005 makes small exchanges several times as fast.

    Raises:
        ValueError: a variable of the environment that cannot be, or a plan to keep of no overlay;
            says which.
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
        switch_interval_s: float | None = None,
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
                "the plan is to be kept, which is for an overlay; set $ANABRANCH_OVERLAY"
            )
        interval = _given("switch_interval_s", None)
        try:
            given_s = None if interval is None else float(interval)
        except ValueError:
            raise ValueError(
                f"$ANABRANCH_SWITCH_INTERVAL_S is {interval!r}, must be a number of seconds"
            ) from None
        if given_s is not None and not 0 < given_s < math.inf:
            raise ValueError(f"$ANABRANCH_SWITCH_INTERVAL_S is {interval!r}, must be > 0")
        self.switch_interval_s = given_s if switch_interval_s is None else switch_interval_s


def _given(name: str, value: str | None) -> str | None:
    return value if value is not None else os.environ.get(_VARIABLE.format(name.upper())) or None


def _said(name: str, value: bool | None) -> bool:
    return flag(os.environ, _VARIABLE.format(name.upper())) if value is None else value


@dataclass(frozen=True)
class Membership:
    """A rank's membership in the group that its process group made.

    Args:
        group: the group, or this rank's part of its site's.
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
    """Wait until a scheduler that was started here has ended; in the end, end it."""
    assert scheduler.stdin is not None
    try:
        scheduler.wait(_END_S)  # by itself, when the last site has left
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
    """Let an error of this rank, while ranks meet, be the others' too.

    Args:
        store: that all ranks share, for this group alone.
        rank: of this process, in [0, size).
        size: how many ranks there are.
    """
    first = ""
    try:
        yield
    except Exception as error:
        # It may be the store that fails; what counts is raised below. It is rank 0's in most cases,
        # and ends with it: the others are to hear why first.
        with suppress(Exception):
            said = f"rank {rank} failed: {error}".encode()
            first = store.compare_set(_WRONG, "", said).decode()
            store.compare_set(f"site{rank}", "", msgspec.json.encode(_Said(wrong=first)))
            if rank:
                store.set(f"failed{rank}", b"")
            else:
                store.wait([f"failed{each}" for each in range(1, size)], timedelta(seconds=_END_S))
        if isinstance(error, DistStoreError) and first and not first.startswith(f"rank {rank} "):
            raise RunAborted(first) from error  # what it waited for did not come for that
        raise


def _has_failed(store: Any, timeout: timedelta) -> Callable[[], str | None]:
    """Return what says why ranks do not meet: another one has failed, or the time is over."""
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
        store: that all ranks share, for this group alone.
        rank: of this process, in [0, size).
        size: how many ranks there are.
        options: this rank's.
        timeout: how long to wait for the others.

    Raises:
        ValueError: options that cannot be, or do not fit others'; says which.
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
    """Join as a site, and start the scheduler first if that falls to this rank.

    Returns:
        The group, its token, and the scheduler's process where it was started here.
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
        if options.switch_interval_s is not None:
            sys.setswitchinterval(options.switch_interval_s)
        # As over gloo, what is not finite is exchanged: a GradScaler looks for it at every rank.
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
    """This process's part in its site, which several of its process groups use.

    Args:
        world: the store of all ranks, without what they left there before they began.

    Attributes:
        world: see above.
        shared: for the site's other ranks, where this process has joined for it; None elsewhere.
        leaves: the group, with the last of the process groups.
        uses: how many process groups there are.
    """

    here: _Site | None = None

    def __init__(self, world: Any) -> None:
        self.world: Any = c10d.PrefixStore("anabranch/", world)
        self.shared: Shared | None = None
        self.leaves: Callable[[], None] = _nothing
        self.uses = 0

    def leave(self) -> None:
        """One process group needs it no longer."""
        self.uses -= 1
        if not self.uses:
            _Site.here = None
            self.leaves()


def _nothing() -> None:
    """Another rank has joined for this site, and leaves."""


def share(
    begin: Callable[[], Any],
    store: Any,
    rank: int,
    size: int,
    options: Options,
    timeout: timedelta,
) -> Membership:
    """Make a group of sites, of which each may have several ranks, in process groups of their own.

    Args:
        begin: returns the store of all ranks, without what they left there before; called where
            this process has no part in a site.
        store, rank, size, timeout: as for :func:`meet`.
        options: this rank's; its site is named.

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
            f"this process group is of the sites {sorted(names)} and another is of "
            f"{sorted(all_names)}; ranks that share sites are in process groups of all of them"
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


class _Said(msgspec.Struct, omit_defaults=True):
    """A rank's entry in the store before ranks meet, or its error."""

    site: str = ""
    has_tls: bool = False
    wrong: str = ""


def _said_by(store: Any, rank: int) -> _Said:
    try:
        said = store.get(f"site{rank}")
    except DistStoreError as error:
        raise RunAborted(f"rank {rank} has not called init_process_group: {error}") from error
    return msgspec.json.decode(said, type=_Said)


def _names(store: Any, rank: int, size: int, options: Options) -> tuple[str, ...]:
    """Return the sites' names by rank, the same at every rank."""
    mine = _Said(options.site or "", has_tls=options.tls is not None)
    store.set(f"site{rank}", msgspec.json.encode(mine))
    all_said = [_said_by(store, each) for each in range(size)]
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
    # Ranks read no file: all have the overlay from the one that starts the scheduler.
    if rank == 0:
        names = said if all(said) else _overlay_names(size, options)
        store.set("names", msgspec.json.encode(names))
    found: list[str] = msgspec.json.decode(store.get("names"))
    if isinstance(found, str):
        raise ValueError(found)
    return tuple(found)


def _overlay_names(size: int, options: Options) -> list[str] | str:
    """Return the names of an overlay's sites, or what is wrong with it."""
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
    """Start a scheduler, unless one is given; return it, and its address, token and no error."""
    if options.scheduler is not None:
        if not options.token:
            raise ValueError("a scheduler is given and no token; set $ANABRANCH_TOKEN to its own")
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
        start_new_session=True,  # an interrupt of the terminal is for the ranks, who leave it then
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        process.wait()
        end(process)
        raise RunAborted(
            f"its process ended with status {process.returncode} before it listened; what it "
            "printed beside rank 0 says why"
        )
    return process, [address, token, ""]


def check_reaches(scheduler: str, here: str) -> None:
    """Check that the scheduler that a rank has started listens where this rank finds it.

    Args:
        scheduler: the host on which it listens.
        here: the address of this machine from which the ranks' store is reached.

    Raises:
        RunAborted: it listens on its own machine's loopback, and this is another machine.
    """
    if addresses.is_loopback(scheduler) and not addresses.is_loopback(here):
        raise RunAborted(
            f"rank 0's scheduler listens on {scheduler}, where only rank 0's own machine finds it, "
            "because the name of that machine leads to its loopback there (as /etc/hosts says); "
            "give an address that all machines use to --master-addr ($MASTER_ADDR)"
        )


def reached_at(store: Any) -> str:
    """Return the address of this machine from which its store is reached."""
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    host = store.host if isinstance(store, c10d.TCPStore) else "127.0.0.1"
    if host == "localhost" or addresses.is_loopback(host):
        return "127.0.0.1"
    found = socket.getaddrinfo(host, store.port, type=socket.SOCK_DGRAM)
    family, kind, _, _, where = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # sends nothing: the kernel looks up its way there
        return cast(str, probe.getsockname()[0])
