"""Packets as TCP hands them over, up to 64 KB at once, and their remains after a loss. Pure.

A packet here begins with the header that Linux puts before it on a TUN device (``IFF_VNET_HDR``),
which gives the length of its segments.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Sequence

# struct virtio_net_hdr: flags, kind of segmentation, bytes of headers, bytes of a segment's
# payload, and where the checksum starts and goes (csum_start, csum_offset).
_VNET = struct.Struct("=BBHHHH")
_GSO_NONE = 0
_GSO_TCP4 = 1
_GSO_ECN = 0x80
MOST_BYTES = _VNET.size + 65_535


class Losses:
    """Draws which of a line's segments are lost: each with the same chance, independently.

    >>> losses = Losses(loss=0.5, seed=1)
    >>> [losses.of(segments) for segments in (4, 4, 4)]
    [[0, 3], [2, 3], [0, 1, 3]]
    """

    def __init__(self, loss: float, seed: int) -> None:
        self._rng = random.Random(seed)
        self._per_gap = math.log1p(-loss)
        self._next = self._gap()

    def _gap(self) -> float:
        if not self._per_gap:
            return math.inf
        return float(math.floor(math.log(1.0 - self._rng.random()) / self._per_gap))

    def of(self, segments: int) -> list[int]:
        """Return which of the next segments are lost, counted from 0."""
        lost = []
        while self._next < segments:
            lost.append(int(self._next))
            self._next += 1 + self._gap()
        self._next -= segments
        return lost


def segments(packet: bytes) -> int:
    """Return how many packets the network would see: more than 1 if TCP sent several at once."""
    kind, segment_bytes = packet[1] & ~_GSO_ECN, packet[4] | packet[5] << 8
    if kind != _GSO_TCP4:
        return 1
    return max(1, math.ceil((len(packet) - _VNET.size - _header_bytes(packet)) / segment_bytes))


def without(packet: bytes, lost: Sequence[int]) -> Iterator[bytes]:
    """Yield the remaining parts of a packet that lost some of its segments, in order.

    Args:
        packet: with its ``virtio_net_hdr``, an IPv4 packet.
        lost: indices of segments, rising.
    """
    count = segments(packet)
    first = 0
    for end in (*lost, count):
        if first < end:
            yield packet if (first, end) == (0, count) else _part(packet, first, end, count)
        first = end + 1


def _header_bytes(packet: bytes) -> int:
    """Return the length of a packet's IPv4 and TCP headers."""
    ip_bytes = (packet[_VNET.size] & 15) * 4
    return int(ip_bytes + (packet[_VNET.size + ip_bytes + 12] >> 4) * 4)


def _part(packet: bytes, first: int, end: int, count: int) -> bytes:
    """Return segments [``first``, ``end``) of a TCP packet as a separate packet."""
    flags, kind, _, segment_bytes, start, offset = _VNET.unpack_from(packet)
    header_bytes = _header_bytes(packet)
    at = _VNET.size + header_bytes
    payload = packet[at + first * segment_bytes : at + end * segment_bytes]
    header = bytearray(packet[_VNET.size : at])
    tcp = (header[0] & 15) * 4
    # IP: the length, the identification and the checksum of the part.
    number = int.from_bytes(header[4:6], "big") + first
    struct.pack_into(">HH", header, 2, header_bytes + len(payload), number & 0xFFFF)
    struct.pack_into(">H", header, 10, 0)
    struct.pack_into(">H", header, 10, ~_sum(header[:tcp]) & 0xFFFF)
    # TCP: the part's sequence number; FIN and PSH only at the end, CWR only at the start.
    (sequence,) = struct.unpack_from(">I", header, tcp + 4)
    struct.pack_into(">I", header, tcp + 4, (sequence + first * segment_bytes) & 0xFFFFFFFF)
    if end < count:
        header[tcp + 13] &= ~0x09 & 0xFF  # FIN, PSH
    if first > 0:
        header[tcp + 13] &= ~0x80 & 0xFF  # CWR
    # The device computes the TCP checksum, starting from the sum of the pseudo-header.
    pseudo = header[12:20] + struct.pack(">HH", 6, header_bytes - tcp + len(payload))
    struct.pack_into(">H", header, tcp + 16, _sum(pseudo))
    if len(payload) <= segment_bytes:
        kind, segment_bytes = _GSO_NONE, 0
    vnet = _VNET.pack(flags, kind, header_bytes, segment_bytes, start, offset)
    return vnet + bytes(header) + payload


def _sum(data: bytes | bytearray) -> int:
    """Return the Internet checksum's sum of 16-bit words, not complemented (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
