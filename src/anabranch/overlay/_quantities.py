"""A link's rate, latency and loss from the attributes of other programs' files.

An attribute's name gives the quantity, and may end in a unit (``bandwidth_mbps``, ``latency_ms``,
``packet_loss``). A value may have a unit too (``"1 Gbit"``, ``"30 ms"``). The unit of a bare rate
or time is never guessed: ``30`` may be seconds or milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["rate", "latency", "loss"]

USUAL = "*"
"""Stands for an attribute of any of the usual names."""

_RATE_NAMES = """rate bandwidth bw capacity speed linkspeed linkspeedraw linkcapacity linkrate
    linkbandwidth throughput goodput datarate bitrate maxbandwidth received medianreceived"""
_LATENCY_NAMES = """latency delay linklatency linkdelay onewaydelay onewaylatency owd
    propagationdelay propdelay meanlatency medianlatency"""
_RTT_NAMES = "rtt roundtrip roundtriptime ping meanrtt medianrtt avgrtt"
_LOSS_NAMES = "loss packetloss lossrate lossratio packetlossrate plr droprate"
_NAMES: Mapping[str, tuple[Kind, float]] = {  # without punctuation -> quantity, and its share
    **dict.fromkeys(_RATE_NAMES.split(), ("rate", 1.0)),
    **dict.fromkeys(_LATENCY_NAMES.split(), ("latency", 1.0)),
    **dict.fromkeys(_RTT_NAMES.split(), ("latency", 0.5)),  # a link's latency is one way
    **dict.fromkeys(_LOSS_NAMES.split(), ("loss", 1.0)),
}
_WORDS: Mapping[Kind, tuple[str, ...]] = {
    "rate": ("rate", "bandwidth", "capacity", "speed", "throughput", "goodput", "bps"),
    "latency": ("latency", "delay", "rtt", "roundtrip"),
    "loss": ("loss", "drop"),
}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# A capital B is a byte, and "MBPS" could be either.
_RATE = re.compile(r"([kKMGTmgt]?)(b|[bB]its?|B|[bB]ytes?)(?:/s|/sec|ps|Ps)?")
_TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "\N{MICRO SIGN}s", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
}
_SHARES = {"%": 0.01, "percent": 0.01, "pct": 0.01}
# Optical lines of SONET and SDH: OC-192 is 192 times OC-1.
_CARRIER = re.compile(r"(OC|STM)-?(\d+)c?", re.IGNORECASE)
_CARRIER_BPS = {"OC": 51.84e6, "STM": 155.52e6}
_LIKE_A_RATE = re.compile(r"\d\s*[kMGT]b|^(OC|STM)-?\d", re.IGNORECASE)
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(\S*(?: \S+)*)", re.IGNORECASE)


class OutOfRange(ValueError):
    """A value that no link can have; the message follows the value in a sentence."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """The quantity, unit and share that an attribute's name gives.

    Attributes:
        kind: rate, latency or loss.
        unit: the unit of a bare number, in bit/s, seconds or shares of packets; None where the name
            has no unit.
        share: the part of the value that counts: half of a round trip.
    """

    kind: Kind
    unit: float | None
    share: float = 1.0


def quantity_of(name: str) -> Quantity | None:
    """Return the quantity that an attribute of a usual name holds; None for any other name.

    >>> quantity_of("Bandwidth_Mbps"), quantity_of("rtt-ms").share, quantity_of("colour")
    (Quantity(kind='rate', unit=1000000.0, share=1.0), 0.5, None)
    """
    words = [each for each in re.split(r"[\s_.()\[\],\-]+|(?<=[a-z])(?=[A-Z])", name) if each]
    whole = "".join(words).lower()
    if whole == "linkspeedraw":
        return Quantity("rate", 1.0)
    if whole in _NAMES:
        kind, share = _NAMES[whole]
        return Quantity(kind, 1.0 if kind == "loss" else None, share)
    stem = "".join(words[:-1]).lower()
    if stem in _NAMES:
        kind, share = _NAMES[stem]
        if (unit := unit_of(kind, words[-1])) is not None:
            return Quantity(kind, unit, share)
    return None


def seems(name: str, value: object) -> Kind | None:
    """Return the kind of quantity that an attribute of an unusual name may hold, or None.

    >>> seems("maxLinkSpeed", 3), seems("LinkLabel", "1-10Gbps"), seems("LinkType", "dark")
    ('rate', 'rate', None)
    """
    lower = name.lower()
    for kind, words in _WORDS.items():
        if any(each in lower for each in words):
            return kind
    return "rate" if isinstance(value, str) and _LIKE_A_RATE.search(value) else None


def split_unit(kind: Kind, text: str) -> tuple[str, float | None]:
    """Return the name and the unit in ``NAME:UNIT``; no unit where the text has none.

    >>> split_unit("rate", "bandwidth:Mbit/s"), split_unit("rate", "odd:name")
    (('bandwidth', 1000000.0), ('odd:name', None))
    """
    name, colon, unit = text.rpartition(":")
    counts = unit_of(kind, unit) if colon else None
    return (text, None) if counts is None else (name, counts)


def unit_of(kind: Kind, text: str) -> float | None:
    """Return a unit's size in bit/s, seconds or shares; None where it is no unit of this kind.

    >>> unit_of("rate", "Gbit/s"), unit_of("rate", "M"), unit_of("latency", "ms")
    (1000000000.0, 1000000.0, 0.001)
    """
    text = text.strip()
    if kind != "rate":
        return (_TIMES if kind == "latency" else _SHARES).get(text.lower())
    if text.lower() in _PREFIXES:  # as LinkSpeedUnits of the Topology Zoo
        return _PREFIXES[text.lower()] if text else None
    found = _RATE.fullmatch(text)
    if found is None:
        return None
    return _PREFIXES[found[1].lower()] * (8.0 if found[2] == "B" or "yte" in found[2] else 1.0)


def amount(kind: Kind, value: Any, unit: float | None) -> float:
    """Return an attribute's value in bit/s, seconds or as a share of packets.

    Args:
        kind: of the attribute.
        value: a number, or text that begins with one.
        unit: of a bare number, as for `Quantity`; None where it is unknown.

    Raises:
        OutOfRange: no link can have this value.
        ValueError: the value is not of this kind, or has no unit; the message follows the value in
            a sentence.

    >>> amount("rate", "1 Gbit", None), amount("latency", 30, 1e-3), amount("loss", "0.1 %", 1.0)
    (1000000000.0, 0.03, 0.001)
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise OutOfRange("must be finite")
    text = str(value).strip()
    if kind == "rate" and (carrier := _CARRIER.fullmatch(text)):
        return _CARRIER_BPS[carrier[1].upper()] * int(carrier[2])
    found = _NUMBER.fullmatch(text)
    if isinstance(value, bool) or found is None:
        raise ValueError(f"is no {kind} that can be read")
    number, own = float(found[1]), found[2]
    if own:
        unit = unit_of(kind, own)
        if unit is None:
            raise ValueError(f"has the unit {own!r}, which is none of a {kind}")
    if unit is None:
        example = {"rate": "Mbit/s", "latency": "ms", "loss": "%"}[kind]
        raise ValueError(f"has no unit, such as {example}")
    amount = number * unit
    if kind == "rate" and not 0 < amount < math.inf:
        raise OutOfRange("must be finite and > 0")
    if kind == "latency" and not 0 <= amount < math.inf:
        raise OutOfRange("must be finite and >= 0")
    if kind == "loss" and not 0 <= amount < 1:
        raise OutOfRange("must be a share of packets in [0, 1), or percent with a %")
    return amount
