"""A run of real processes whose connections to the scheduler pass a relay, which can break them."""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.overlay import Overlay
from anabranch_lab.run.launch import TOKEN_VARIABLE

from ..forked import Forked


class Relay:
    """Hands on what comes, both ways, until told to break everything that is open."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._break, self._closed = threading.Event(), threading.Event()
        self.broken = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def break_all(self) -> None:
        """Reset every connection, with what is on its way."""
        self._break.set()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5)
        self._listener.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            if self._break.is_set():
                self._break.clear()
                self.broken += len(self._pairs) // 2
                for end in [*self._pairs]:
                    self._drop(end)
            ready, _, _ = select.select([self._listener, *self._pairs], [], [], 0.01)
            for end in ready:
                if end is self._listener:
                    self._accept()
                elif end in self._pairs:
                    self._pass_on(end)
        for end in [*self._pairs]:
            self._drop(end)

    def _accept(self) -> None:
        caller, _ = self._listener.accept()
        try:
            called = socket.create_connection(self._target)
        except OSError:
            caller.close()
            return
        self._pairs[caller], self._pairs[called] = called, caller

    def _pass_on(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
            if data:
                self._pairs[end].sendall(data)
                return
        except OSError:
            pass
        other = self._pairs[end]
        for each in (end, other):
            self._pairs.pop(each, None)
            each.close()

    def _drop(self, end: socket.socket) -> None:
        # Without lingering a close is a reset: what is on its way is lost.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
        self._pairs.pop(end, None)


@contextmanager
def processes() -> Iterator[list[Forked]]:
    started: list[Forked] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def run_through_a_relay(
    scenario: Path, overlay: Overlay, log: Path, on_tick: Callable[[Relay], None], limit_s: float
) -> int:
    """Run a scenario as processes; return how many connections were broken.

    Raises:
        AssertionError: a process failed, or did not end in time.
    """
    environment = {**os.environ, TOKEN_VARIABLE: secrets.token_hex(16)}
    command = [sys.executable, "-m", "anabranch"]
    with processes() as started:

        def start(*arguments: str, stdout: int = subprocess.DEVNULL) -> Forked:
            process = Forked(
                [*command, *arguments], stdout=stdout, stderr=subprocess.PIPE, env=environment
            )
            started.append(process)
            return process

        scheduler = start("host", str(scenario), "--log", str(log), stdout=subprocess.PIPE)
        assert scheduler.stdout is not None
        host, port = scheduler.stdout.readline().strip().rsplit(":", 1)
        relay = Relay((host, int(port)))
        try:
            address = f"{relay.address[0]}:{relay.address[1]}"
            for site in overlay.sites:
                start("site", site.name, "--scheduler", address, "--threads", "1")
            deadline_s = time.monotonic() + limit_s
            tick = threading.Event()
            while any(process.poll() is None for process in started):
                assert time.monotonic() < deadline_s, "the run does not end"
                on_tick(relay)
                tick.wait(0.02)
        finally:
            relay.close()
        for process in started:
            assert process.stderr is not None
            assert process.returncode == 0, process.stderr.read()
        return relay.broken
