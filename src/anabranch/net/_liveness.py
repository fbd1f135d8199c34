"""Detects a lost peer, from heartbeats in both directions and from the kernel's TCP statistics.

Each end sends something every ``heartbeat_s``. At each heartbeat it measures how long the peer has
been silent, and for how long the peer's kernel has acknowledged nothing.
:mod:`anabranch.net.silence` judges the two durations. A peer is given up at most once.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.net.errors import LinkError, SilentWay
from anabranch.net.silence import Silence, Unanswered, answers, is_way_down

# Fields of the kernel's struct tcp_info (linux/tcp.h): unanswered probes of a closed window,
# unacknowledged segments, and the milliseconds since the latest data and acknowledgment.
_TCP_INFO = struct.Struct("=3xB20xI24xII")
_ROUND_TRIP = struct.Struct("=68xI")  # tcpi_rtt, microseconds


@dataclass(frozen=True, slots=True)
class Patience:
    """The least silences that end a connection.

    Args:
        least_silence_s: the least silence after which the peer counts as lost.
        heartbeat_s: how often each end sends something; the same at both ends.
        stillness_s: the least silence after which the peer counts as lost while its kernel answers.
        ends_with_way: whether the connection ends with :class:`SilentWay` soon after the path to
            the peer fails.
    """

    least_silence_s: float
    heartbeat_s: float
    stillness_s: float
    ends_with_way: bool


class Liveness:
    """Sends a heartbeat and checks the peer's, periodically.

    Args:
        patience: the least silences that end the connection.
        beat: sends a heartbeat, unless this end has sent something since the last call; its
            argument tells whether this end must stay mute.
        give_up: ends the connection, for the reason given.
    """

    def __init__(
        self, patience: Patience, beat: Callable[[bool], None], give_up: Callable[[LinkError], None]
    ) -> None:
        self._patience = patience
        self._beat = beat
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._silence = Silence(
            patience.least_silence_s, self._loop.time(), heartbeat_s=patience.heartbeat_s
        )
        self._least_silence_s = patience.least_silence_s
        self._stillness_s = patience.stillness_s
        self._unanswered = Unanswered()
        # It emulates links, whose silence the kernel's statistics do not show.
        self._stands_for_links = False
        self._tell: Callable[[bool], None] | None = None  # gets whether the silence is unusual
        self._is_silent = False  # as last reported
        self._is_mute = self._is_deaf = _never
        self._peer = "?"
        self._tcp: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, peer: str, tcp: socket.socket | None) -> None:
        """Start the heartbeats and checks.

        Args:
            peer: the peer's name, for errors.
            tcp: the TCP socket, for the kernel's statistics; None if the peer is on this machine,
                or a pipe leads to it.
        """
        self._peer, self._tcp = peer, tcp
        self._timer = self._loop.call_later(self._patience.heartbeat_s, self._look)

    def end(self) -> None:
        """Stop the heartbeats and checks."""
        if self._timer is not None:
            self._timer.cancel()

    def give_up_after(self, least_silence_s: float, stillness_s: float) -> None:
        """Set the least silences after which the peer counts as lost; see :class:`Patience`."""
        self._silence.least_s = self._least_silence_s = least_silence_s
        self._stillness_s = stillness_s

    def bear(self, silence_s: float) -> None:
        """See :meth:`anabranch.net.network.Connection.bear`."""
        self._silence.least_s = max(silence_s, self._least_silence_s)

    def fall_silent(self, is_mute: Callable[[], bool], is_deaf: Callable[[], bool]) -> None:
        """See :meth:`anabranch.net.network.Connection.fall_silent`."""
        self._is_mute, self._is_deaf = is_mute, is_deaf
        self._stands_for_links = True

    def tell(self, told: Callable[[bool], None] | None) -> None:
        """See :meth:`anabranch.net.network.Connection.tell_silence`; None ends the reports."""
        self._tell = told

    def heard(self, now_s: float) -> None:
        """Note that data arrived."""
        if self._is_deaf():
            return
        self._silence.heard(now_s)
        if self._is_silent:
            self._told(False)

    def _look(self) -> None:
        """Send a heartbeat if idle; check the peer's silence."""
        now_s, beat_s = self._loop.time(), self._patience.heartbeat_s
        self._timer = self._loop.call_later(beat_s, self._look)
        self._beat(self._is_mute())
        silent_s = self._silence.look(now_s)
        if silent_s > 2 * beat_s and not self._is_deaf():
            # Inside a payload the loop is not woken for every byte.
            silent_s = min(silent_s, self._kernel_silent_s())
            self._silence.flowed(now_s - silent_s)
        ends_with_way = self._patience.ends_with_way
        looks = ends_with_way or silent_s > 2 * beat_s
        unanswered_s = self._unanswered_s(now_s) if looks else 0.0
        if ends_with_way and is_way_down(silent_s, unanswered_s, beat_s):
            self._give_up(
                SilentWay(
                    f"nothing crosses the way to {self._peer}: it was silent for {silent_s:.1f} s, "
                    f"and its machine acknowledged nothing for {unanswered_s:.1f} s"
                )
            )
        elif (why := self._too_silent(silent_s, unanswered_s)) is not None:
            self._give_up(LinkError(f"{self._peer} has said nothing for {silent_s:.1f} s{why}"))
        elif (is_silent := self._silence.is_unusual(silent_s, unanswered_s)) or self._is_silent:
            self._told(is_silent)

    def _told(self, is_silent: bool) -> None:
        self._is_silent = is_silent
        if self._tell is not None:
            self._tell(is_silent)

    def _too_silent(self, silent_s: float, unanswered_s: float | None) -> str | None:
        """Return why the silence is too long, as the end of a sentence; None if it is not."""
        most_s = self._silence.most_s
        if silent_s <= most_s:
            return None
        if unanswered_s is None:
            return ""
        if not answers(silent_s, most_s, unanswered_s):
            return ", and its machine acknowledges nothing: the machine or the path to it is down"
        still_s = max(most_s, self._stillness_s)
        if silent_s <= still_s:
            return None
        return (
            ", though its machine answers: the process is stopped, or holds its interpreter's lock "
            f"for longer than the {still_s:g} s that are allowed (--stillness)"
        )

    def _unanswered_s(self, now_s: float) -> float | None:
        """Return how long the peer's kernel has not answered, seconds; None if unknown."""
        if self._stands_for_links:
            return None
        if self._tcp is None:
            return 0.0  # the peer's kernel is ours
        account = account_of(self._tcp)
        if account is None:
            return None
        probes, unacknowledged, _, acked_ms = account
        waits = bool(probes or unacknowledged)
        return self._unanswered.look(now_s, waits, now_s - acked_ms / 1e3)

    def _kernel_silent_s(self) -> float:
        """Return the seconds since the kernel received data; infinite if unknown."""
        if self._tcp is None or (account := account_of(self._tcp)) is None:
            return math.inf
        return account[2] / 1e3


def _never() -> bool:
    return False


def round_trip_s(tcp: socket.socket) -> float | None:
    """Return a connection's round trip as its kernel measures it; None where it does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    told = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
    return _ROUND_TRIP.unpack(told)[0] / 1e6 if len(told) == _ROUND_TRIP.size else None


def account_of(tcp: socket.socket) -> tuple[int, int, int, int] | None:
    """Return the fields of _TCP_INFO for a connection; None where the kernel lacks them."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    told = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    if len(told) < _TCP_INFO.size:
        return None
    probes, unacknowledged, data_ms, acked_ms = _TCP_INFO.unpack(told)
    return probes, unacknowledged, data_ms, acked_ms
