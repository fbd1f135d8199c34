"""What is left of a packet that lost segments is what the network would have delivered."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch_lab.emulate._segments import Losses, segments, without

SEGMENT = 1000
SOURCE, TARGET = bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2])


def checksum(data: bytes) -> int:
    """The Internet checksum, by its definition: the complement of the ones' complement sum."""
    total = 0
    for (word,) in struct.iter_unpack(">H", data + b"\0" * (len(data) % 2)):
        total += word
        if total > 0xFFFF:
            total -= 0xFFFF
    return total ^ 0xFFFF


def tcp_packet(
    payload: bytes, sequence: int = 7, number: int = 1, flags: int = 0x19, options: int = 12
) -> bytes:
    """Return a packet as the kernel hands it over: segmented and summed later."""
    tcp_bytes = 20 + options
    length = 20 + tcp_bytes + len(payload)
    head = struct.pack(">BBHHHBBH", 0x45, 0, length, number, 0x4000, 64, 6, 0) + SOURCE + TARGET
    head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
    pseudo = SOURCE + TARGET + struct.pack(">HH", 6, tcp_bytes + len(payload))
    tcp = struct.pack(
        ">HHIIBBHHH", 5000, 5001, sequence, 1, tcp_bytes // 4 << 4, flags, 512,
        checksum(pseudo) ^ 0xFFFF, 0,
    )  # fmt: skip
    kind = 1 if len(payload) > SEGMENT else 0
    vnet = struct.pack("=BBHHHH", 1, kind, 20 + tcp_bytes, SEGMENT if kind else 0, 20, 16)
    return vnet + head + tcp + b"\1" * options + payload


def parse(packet: bytes) -> dict[str, int | bytes]:
    """Take a packet apart, checking every length and sum on the way."""
    flags, kind, header_bytes, segment_bytes, start, offset = struct.unpack_from("=BBHHHH", packet)
    ip = packet[10:]
    assert struct.unpack_from(">H", ip, 2)[0] == len(ip)
    assert checksum(ip[:20]) == 0
    tcp = ip[20:]
    assert header_bytes == 20 + (tcp[12] >> 4) * 4
    payload = ip[header_bytes:]
    assert (flags, start, offset) == (1, 20, 16)
    pseudo = ip[12:20] + struct.pack(">HH", 6, len(tcp))
    assert struct.unpack_from(">H", tcp, 16)[0] == checksum(pseudo) ^ 0xFFFF
    assert (kind, segment_bytes) == ((1, SEGMENT) if len(payload) > SEGMENT else (0, 0))
    (number,) = struct.unpack_from(">H", ip, 4)
    (sequence,) = struct.unpack_from(">I", tcp, 4)
    return {"number": number, "sequence": sequence, "flags": tcp[13], "payload": payload}


@given(st.data())
def test_the_segments_that_are_not_lost_arrive_as_they_would_have(data: st.DataObject) -> None:
    size = data.draw(st.integers(SEGMENT + 1, 40 * SEGMENT))
    sequence = data.draw(st.sampled_from([7, 0xFFFFFF00]))
    payload = bytes(index % 251 for index in range(size))
    packet = tcp_packet(payload, sequence, number=65_530)
    count = -(-size // SEGMENT)
    assert segments(packet) == count
    lost = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    arrived: dict[int, bytes] = {}
    for part in map(parse, without(packet, sorted(lost))):
        piece, at = part["payload"], (int(part["sequence"]) - sequence) & 0xFFFFFFFF
        assert isinstance(piece, bytes)
        assert at % SEGMENT == 0
        first, last = at // SEGMENT, (at + len(piece) - 1) // SEGMENT
        assert part["number"] == (65_530 + first) & 0xFFFF
        # FIN and PSH are said by the last segment alone, the rest by all.
        assert part["flags"] == (0x19 if last == count - 1 else 0x10)
        for index in range(first, last + 1):
            arrived[index] = payload[index * SEGMENT : (index + 1) * SEGMENT]
            assert piece[index * SEGMENT - at :][:SEGMENT] == arrived[index]
    assert arrived.keys() == set(range(count)) - lost


def test_what_lost_nothing_is_left_alone() -> None:
    packet = tcp_packet(bytes(5000))
    assert list(without(packet, [])) == [packet]


def test_a_single_packet_that_is_lost_is_gone() -> None:
    packet = tcp_packet(b"")
    assert segments(packet) == 1
    assert list(without(packet, [0])) == []


def test_what_is_not_tcp_is_one_packet() -> None:
    assert segments(struct.pack("=BBHHHH", 0, 0, 0, 0, 0, 0) + bytes(60)) == 1


def test_window_reduction_is_said_by_the_first_segment_alone() -> None:
    parts = [parse(part) for part in without(tcp_packet(bytes(3000), flags=0x90), [1])]
    assert [part["flags"] for part in parts] == [0x90, 0x10]


def test_the_share_that_is_lost_does_not_depend_on_how_segments_are_packed() -> None:
    single, packed = Losses(0.02, seed=5), Losses(0.02, seed=5)
    one_by_one = [index for index in range(20_000) if single.of(1)]
    in_packets = [start + lost for start in range(0, 20_000, 40) for lost in packed.of(40)]
    assert one_by_one == in_packets
    assert 300 < len(one_by_one) < 500  # 400 expected, 5 deviations either way


def test_gaps_between_losses_are_geometric() -> None:
    losses = Losses(0.25, seed=2)
    lost = [index for index in range(40_000) if losses.of(1)]
    gaps = [b - a for a, b in pairwise(lost)]
    for length in (1, 2, 3):
        expected = 0.25 * 0.75 ** (length - 1)
        assert abs(gaps.count(length) / len(gaps) - expected) < 0.02


def test_nothing_is_lost_where_nothing_is_to_be() -> None:
    losses = Losses(0.0, seed=1)
    assert not any(losses.of(100_000) for _ in range(100))
