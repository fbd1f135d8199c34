"""Make an emulated overlay, change it during a run, and remove it whatever happens."""

from __future__ import annotations

import os
import re
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from anabranch.overlay import Overlay
from anabranch_lab.emulate._busy import share_of
from anabranch_lab.emulate._layout import (
    CONTROL,
    SITE,
    Batch,
    Direction,
    EmulationError,
    Layout,
    Way,
    changes,
    check,
    needed_way,
)
from anabranch_lab.emulate._wiring import READY, Wiring, wire

_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"anabranch-(\d+)-")
_MERCY_S = 3.0


class Emulation:
    """Network namespaces that stand for the sites of an overlay; `emulated` makes them.

    Attributes:
        addresses: of each site, on the overlay; linked sites reach each other.
        control_addresses: of each site, on the control network, whose links have no rate limit.
        control_address: the scheduler's, on the control network.
        interface: the interface that has a site's address on the overlay.
        way: how packets travel between sites: ``plain``, ``netem`` or ``relay``.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._processes: list[subprocess.Popen[Any]] = []
        self._relay: _Relay | None = None
        self._cut: set[tuple[int, int]] = set()
        self._over = threading.Event()
        self._traces: threading.Thread | None = None
        self._failure: EmulationError | None = None
        sites = range(layout.overlay.size)
        self.addresses = tuple(map(layout.address, sites))
        self.control_addresses = tuple(map(layout.control_address, sites))
        self.control_address = layout.control_address(layout.overlay.size)
        self.interface = SITE
        self.way: Way = layout.way

    def inside(self, site: int | None) -> list[str]:
        """Return the prefix of a command that runs as a site; None: as the scheduler."""
        layout = self._layout
        name = layout.control_namespace if site is None else layout.namespaces[site]
        return ["ip", "netns", "exec", name]

    def popen(
        self, site: int | None, command: Sequence[str], **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process as a site or as the scheduler; it ends when the emulation does.

        Args:
            site: its index; None: the scheduler.
            command: what to start.
            options: of `subprocess.Popen`.
        """
        process = subprocess.Popen([*self.inside(site), *command], **options)
        self._processes.append(process)
        return process

    def begin(self) -> None:
        """Begin the run: the links' traces count from now."""
        assert self._traces is None, "a run begins once"
        self._traces = threading.Thread(
            target=self._follow, args=(time.monotonic(),), name="link traces", daemon=True
        )
        self._traces.start()

    def _follow(self, began_s: float) -> None:
        for change in changes(self._layout.overlay):
            if self._over.wait(max(0.0, began_s + change.at_s - time.monotonic())):
                return
            try:
                self.set_rates(change.rates_bps)
            except EmulationError as error:
                self._failure = error
                return

    def set_rates(self, rates_bps: Iterable[tuple[int, int, float]]) -> None:
        """Change the rates of links at once; a link's trace, if it has one, may change it again.

        Args:
            rates_bps: source, target and new rate of each, bit/s.

        Raises:
            KeyError: there is no such link.
            EmulationError: the kernel refuses.
        """
        carry_out(self._layout.set_rates(rates_bps))

    def cut(self, source: int, target: int) -> None:
        """Lose all packets of a link from now on; neither end is told.

        Raises:
            KeyError: there is no such link.
            ValueError: it is cut already.
        """
        if (source, target) in self._cut:
            raise ValueError(f"the link from site {source} to site {target} is cut already")
        carry_out([self._layout.cut(source, target)])
        self._cut.add((source, target))

    def cut_control(self, site: int, directions: Collection[Direction] = ("to", "from")) -> None:
        """Lose all packets between a site and the control network; the site is not told.

        Args:
            site: its index.
            directions: in which packets are lost; both by default.

        Raises:
            EmulationError: the kernel refuses, for instance if the site's packets are lost already.
        """
        carry_out([self._layout.cut_control(site, directions)])

    def heal(self, source: int, target: int) -> None:
        """Undo ``cut``.

        Raises:
            KeyError: there is no such link.
            ValueError: it is not cut.
        """
        batch = self._layout.heal(source, target)
        if (source, target) not in self._cut:
            raise ValueError(f"the link from site {source} to site {target} is not cut")
        carry_out([batch])
        self._cut.remove((source, target))

    def check(self) -> None:
        """Check that the emulation still works.

        Raises:
            EmulationError: a trace's change of rates or the relay has failed; says why.
        """
        if self._failure is not None:
            raise self._failure
        if self._relay is not None:
            self._relay.check()

    @property
    def relay_busy(self) -> float | None:
        """How busy the relay was while it carried data, in [0, 1].

        None if there is no relay, or it has not said so yet.

        While the relay has time to spare, the times that links take are the network's.
        """
        return None if self._relay is None else self._relay.busy()

    @property
    def relay_pid(self) -> int | None:
        """The relay's process, where there is one."""
        return None if self._relay is None else self._relay.popen.pid

    def _end(self) -> None:
        self._over.set()
        if self._traces is not None:
            self._traces.join()
        for process in self._processes:
            process.kill()
            process.wait()
        if self._relay is not None:
            self._relay.end()


@contextmanager
def emulated(
    overlay: Overlay,
    *,
    delays: bool = True,
    forwarding: bool = False,
    congestion_control: str | None = None,
    seed: int = 0,
) -> Iterator[Emulation]:
    """Make an overlay's links on this machine, and remove them in the end.

    Needs root, iproute2, and a kernel with network namespaces, veth and HTB. Links that delay or
    lose packets may need TUN. Capped ports need IFB. If this process is killed, the next emulation
    removes what it left.

    Args:
        overlay: what to make. Between linked sites packets travel in both directions; without a
            link back, the packets that come back have no rate limit.
        delays: make links delay and lose packets. If not, they are only held to their goodput.
        forwarding: forward packets between sites without a link, through other sites, as IP does.
        congestion_control: of connections between sites; None: the machine's default.
        seed: of the draw of lost packets.

    Raises:
        EmulationError: this machine or kernel cannot emulate, or the overlay cannot be emulated;
            the message says what is missing.
    """
    _check_machine()
    if delays:
        check(overlay)
    _clear_away()
    prefix = f"anabranch-{os.getpid()}-{secrets.token_hex(2)}"
    way = needed_way(overlay, lambda: _kernel_delays(prefix)) if delays else "plain"
    layout = Layout(overlay, prefix, way, forwarding, congestion_control)
    with ExitStack() as stack:
        stack.callback(_remove, prefix)
        carry_out([layout.create()])
        emulation = Emulation(layout)
        stack.callback(emulation._end)
        if way == "relay":
            emulation._relay = _Relay(wire(layout, seed))
        carry_out(layout.configure())
        carry_out(layout.hold())
        for site, script in layout.settings().items():
            subprocess.run([*emulation.inside(site), "sh", "-c", script], check=True)
        yield emulation


def carry_out(batches: Sequence[Batch]) -> None:
    """Run batches of commands, all at once.

    Raises:
        EmulationError: one failed; says which and why.
    """
    started = []
    for batch in batches:
        inside = [] if batch.namespace is None else ["-n", batch.namespace]
        process = subprocess.Popen(
            [batch.tool, *inside, "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((batch, process))
    failed = []
    for batch, process in started:
        _, said = process.communicate("\n".join(batch.lines) + "\n")
        if process.returncode != 0:
            failed.append(_account(batch, said))
    if failed:
        raise EmulationError(failed[0])


def _account(batch: Batch, said: str) -> str:
    """Return one line about the failure of a batch."""
    found = re.search(r"Command failed -:(\d+)", said)
    line = f" {batch.lines[int(found.group(1)) - 1]}" if found else ""
    why = said.partition("Command failed")[0].strip().replace("\n", "; ")
    where = "" if batch.namespace is None else f" in {batch.namespace}"
    return (
        f"`{batch.tool}{line}`{where} failed: {why or 'it does not say why'}; emulated links need "
        "root, and a kernel with network namespaces, veth, HTB and, for capped ports, IFB"
    )


class _Relay:
    """The relay's process, which ends when this process does, however this one ends.

    Raises:
        EmulationError: a relay cannot work here.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._said = ""  # about its load
        self._stderr: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "anabranch_lab.emulate._relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process only, which ends the relay last
        )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        try:
            self.popen.stdin.write(wiring.dumps() + "\n")
            self.popen.stdin.flush()
            ready = self.popen.stdout.readline().strip() == READY
        except BaseException:
            self.end()
            raise
        if not ready:
            self.popen.wait()
            account = self._account()
            self.end()
            raise EmulationError(
                f"links that delay or lose packets need a relay, which cannot work here: {account}"
            )

    def check(self) -> None:
        """See :meth:`Emulation.check`."""
        if self.popen.poll() is not None:
            raise EmulationError(f"the relay between the sites has ended: {self._account()}")

    def busy(self) -> float | None:
        """See :attr:`Emulation.relay_busy`."""
        assert self.popen.stdout is not None
        told = self.popen.stdout.fileno()
        while select.select([told], [], [], 0.0)[0] and (said := os.read(told, 1 << 16)):
            self._said = (self._said + said.decode())[-100:]
        return share_of(self._said)

    def _account(self) -> str:
        self._stderr.seek(0)
        said = self._stderr.read().strip()
        return said.splitlines()[-1] if said else f"exit code {self.popen.returncode}"

    def end(self) -> None:
        """End the relay's process."""
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self._stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # it was gone before it had read
                    continue


# --- the machine -------------------------------------------------------------------------------


def check_emulable(overlay: Overlay) -> None:
    """Check that an overlay can be emulated on this machine.

    Raises:
        EmulationError: says what is missing, and what to do.
    """
    _check_machine()
    check(overlay)


def _check_machine() -> None:
    if sys.platform != "linux":
        raise EmulationError(
            f"links are emulated by Linux, and this is {sys.platform}; run without --emulate"
        )
    if os.geteuid() != 0:
        raise EmulationError(
            "emulated links need root, who alone may make network namespaces; run as root, or run "
            "without --emulate"
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise EmulationError(
                f"emulated links need `{tool}`, which is not here; install iproute2, or run "
                "without --emulate"
            )


def _kernel_delays(prefix: str) -> bool:
    """Return whether the kernel has netem, by trying."""
    name = f"{prefix}-{CONTROL}"
    carry_out([Batch("ip", None, (f"netns add {name}",))])
    try:
        carry_out([Batch("tc", name, ("qdisc add dev lo root netem delay 1ms",))])
    except EmulationError:
        return False
    finally:
        _remove(prefix)
    return True


def _clear_away() -> None:
    """Remove the namespaces of emulations whose process was killed."""
    if not _NAMESPACES.is_dir():
        return
    for path in _NAMESPACES.iterdir():
        found = _NAME.match(path.name)
        if found and not Path("/proc", found.group(1)).exists():
            _delete([path.name])


def _remove(prefix: str) -> None:
    """Remove an emulation's namespaces that exist."""
    _delete([path.name for path in _NAMESPACES.glob(f"{prefix}-*")])


def _delete(names: Sequence[str]) -> None:
    # The next emulation tries again to remove what cannot be removed now.
    subprocess.run(
        ["ip", "-force", "-batch", "-"],
        input="".join(f"netns delete {name}\n" for name in names),
        capture_output=True,
        text=True,
        check=False,
    )
