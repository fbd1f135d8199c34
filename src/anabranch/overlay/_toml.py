"""Our own overlay format: TOML, for people to write and for the scheduler to send to sites.

``examples/overlays/two-coasts.toml`` shows every key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from anabranch._typed_toml import TomlError, decode_toml, listed, nearest
from anabranch.overlay._model import Basis, Link, Overlay, OverlayError, Site, Trace
from anabranch.overlay._rates import redraw
from anabranch.overlay._trace_file import read_trace

_T = TypeVar("_T")
# TOML has inf and nan; a bound keeps both out.
_Rate = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
_Latency = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
_Loss = Annotated[float, Meta(ge=0, lt=1)]
_Period = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class _Site(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    latitude_deg: float | None = None
    longitude_deg: float | None = None
    uplink_bps: _Rate | None = None
    downlink_bps: _Rate | None = None


class _Trace(Struct, forbid_unknown_fields=True):
    starts_s: list[float]
    rates_bps: list[_Rate]


class _Link(Struct, forbid_unknown_fields=True):
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    rate_bps: _Rate | None = None
    latency_s: _Latency | None = None
    latency_drift_s: _Latency | None = None
    loss: _Loss | None = None
    trace: _Trace | None = None
    trace_file: str | None = None
    back_rate_bps: _Rate | None = None
    back_trace: _Trace | None = None
    back_trace_file: str | None = None


class _Defaults(Struct, forbid_unknown_fields=True):
    rate_bps: _Rate | None = None
    latency_s: _Latency | None = None
    latency_drift_s: _Latency = 0.0
    loss: _Loss = 0.0
    uplink_bps: _Rate | None = None
    downlink_bps: _Rate | None = None


class _Dynamics(Struct, forbid_unknown_fields=True):
    period_s: _Period
    low_bps: _Rate
    high_bps: _Rate
    duration_s: _Period
    seed: Annotated[int, Meta(ge=0)]


class _File(Struct, forbid_unknown_fields=True):
    name: str
    site: list[_Site]
    link: list[_Link] = []
    defaults: _Defaults = msgspec.field(default_factory=_Defaults)
    dynamics: _Dynamics | None = None


def loads(
    text: str,
    where: str = "<string>",
    unknown_rate_bps: float | None = None,
    folder: Path | None = None,
) -> Overlay:
    """Read an overlay from TOML; equal texts may give one object, which is frozen.

    Args:
        text: the document. ``name`` and ``[[site]]`` (``name``, ``latitude_deg``,
            ``longitude_deg``, ``uplink_bps``, ``downlink_bps``) come first. A ``[[link]]`` has
            ``from`` and ``to``, ``latency_s``, ``latency_drift_s``, ``loss`` and one of
            ``rate_bps``, ``trace = {starts_s, rates_bps}`` and ``trace_file``, which `read_trace`
            reads. ``back_rate_bps``, ``back_trace`` or ``back_trace_file`` also makes the link
            the other way, with the same latency, drift and loss.
            ``[defaults]`` gives ``rate_bps``, ``latency_s``, ``latency_drift_s`` and ``loss`` for
            links that leave them out (the latter two are 0 if left out here too), and
            ``uplink_bps`` and ``downlink_bps`` for sites. ``[dynamics]`` changes all rates of links
            during the run, as `redraw` does.
        where: the name of the document in errors.
        unknown_rate_bps: the rate of links without one, bit/s; None where each must have one.
        folder: the paths of trace files are relative to it; None where there are no trace files.

    Raises:
        OverlayError: a syntax error (with its line), or a key that is unknown, missing, of the
            wrong type or out of range (with its path, such as ``link[3].rate_bps``; the first
            link is ``link[0]``), or anything that `Overlay` refuses.

    >>> overlay = loads('''
    ...     name = "pair"
    ...     site = [{name = "a"}, {name = "b"}]
    ...     link = [{from = "a", to = "b", rate_bps = 2e6, back_rate_bps = 1e6, latency_s = 0.03}]
    ... ''')
    >>> [overlay.label(link) for link in overlay]
    ['a->b', 'b->a']
    """
    try:
        if folder is None:
            return _read(text, unknown_rate_bps)
        return _make(text, unknown_rate_bps, folder)
    except (OverlayError, TomlError) as error:
        raise OverlayError(f"{where}: {error}") from error.__cause__


@lru_cache(maxsize=8)  # every site of a simulation is sent the same text
def _read(text: str, unknown_rate_bps: float | None) -> Overlay:
    return _make(text, unknown_rate_bps, None)


def _make(text: str, unknown_rate_bps: float | None, folder: Path | None) -> Overlay:
    file = decode_toml(text, _File)
    links = tuple(_links(file, unknown_rate_bps, folder))
    overlay = Overlay(file.name, tuple(_sites(file)), links)
    if file.dynamics is None:
        return overlay
    return _at_key("dynamics", redraw, overlay, **msgspec.structs.asdict(file.dynamics))


def _sites(file: _File) -> Iterator[Site]:
    default = file.defaults
    for entry in file.site:
        yield Site(
            entry.name,
            entry.latitude_deg,
            entry.longitude_deg,
            default.uplink_bps if entry.uplink_bps is None else entry.uplink_bps,
            default.downlink_bps if entry.downlink_bps is None else entry.downlink_bps,
        )


def _links(file: _File, unknown_rate_bps: float | None, folder: Path | None) -> Iterator[Link]:
    index = {site.name: i for i, site in enumerate(file.site)}
    given: dict[tuple[str, str], int] = {}  # the [[link]] that made each direction
    for i, entry in enumerate(file.link):
        key = f"link[{i}]"
        for end, site in (("from", entry.source), ("to", entry.target)):
            if site not in index:
                near = nearest(site, index) or f"the sites are {listed(index)}"
                raise OverlayError(f"{key}.{end}: no site {site!r}; {near}")
        if entry.source == entry.target:
            raise OverlayError(f"{key}: joins {entry.source} to itself; leave it out")
        latency_s = file.defaults.latency_s if entry.latency_s is None else entry.latency_s
        if latency_s is None:
            raise OverlayError(
                f"{key}.latency_s: {entry.source}->{entry.target} has no latency; give it here or "
                "in [defaults]"
            )
        drift_s = entry.latency_drift_s
        drift_s = file.defaults.latency_drift_s if drift_s is None else drift_s
        loss = file.defaults.loss if entry.loss is None else entry.loss
        ways = [(entry.source, entry.target, "")]
        back_given = (entry.back_rate_bps, entry.back_trace, entry.back_trace_file)
        if any(each is not None for each in back_given):
            ways.append((entry.target, entry.source, "back_"))
        for source, target, back in ways:
            if (source, target) in given:
                raise OverlayError(
                    f"{key}: link {source}->{target} is given twice, first by "
                    f"link[{given[source, target]}]; keep one (add their rates if both are real)"
                )
            given[source, target] = i
            found_bps, trace = _course(file, entry, key, back, folder)
            basis: Basis = "given" if found_bps is not None else "assumed"
            rate_bps = unknown_rate_bps if found_bps is None else found_bps
            if rate_bps is None:
                raise OverlayError(
                    f"{key}.rate_bps: {entry.source}->{entry.target} has no rate; give rate_bps "
                    "or trace here, or rate_bps in [defaults]"
                )
            ends = index[source], index[target]
            yield Link(*ends, rate_bps, latency_s, loss, trace, drift_s, basis)


def _course(
    file: _File, entry: _Link, key: str, back: str, folder: Path | None
) -> tuple[float | None, Trace | None]:
    """Return one way's rate at the start, None where unknown, and its trace, if it has one."""
    own_bps, written, elsewhere = (
        (entry.back_rate_bps, entry.back_trace, entry.back_trace_file)
        if back
        else (entry.rate_bps, entry.trace, entry.trace_file)
    )
    if written is None and elsewhere is None:
        rate_bps = file.defaults.rate_bps if own_bps is None else own_bps
        return rate_bps, None
    if written is not None and elsewhere is not None:
        raise OverlayError(f"{key}.{back}trace_file: there is a {back}trace too; keep one of them")
    if own_bps is not None:
        raise OverlayError(
            f"{key}.{back}rate_bps: there is a {back}trace too, whose first rate is the rate at "
            "the start; keep one of them"
        )
    if file.dynamics is not None:
        raise OverlayError(
            f"{key}.{back}trace: [dynamics] already says how every rate changes; drop one of them"
        )
    if written is not None:
        starts_s, rates_bps = tuple(written.starts_s), tuple(written.rates_bps)
        trace = _at_key(f"{key}.{back}trace", Trace, starts_s, rates_bps)
    elif folder is None:
        raise OverlayError(
            f"{key}.{back}trace_file: its path counts from the folder of the overlay's file, and "
            f"this text is of none; give {back}trace"
        )
    else:
        assert elsewhere is not None
        trace = _at_key(f"{key}.{back}trace_file", read_trace, folder / elsewhere)
    return trace.rate_bps(0.0), trace


def _at_key(key: str, make: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call ``make``, and put the key in front of its error message."""
    try:
        return make(*args, **kwargs)
    except OverlayError as error:
        raise OverlayError(f"{key}: {error}") from None


def dumps(overlay: Overlay) -> str:
    """Return an overlay as TOML; `loads` returns an equal overlay, to the last bit.

    Raises:
        OverlayError: a name that UTF-8 cannot hold.

    >>> from anabranch.overlay import internet2_9
    >>> loads(dumps(internet2_9())) == internet2_9()
    True
    """
    lines = [f"name = {_string(overlay.name)}"]
    for site in overlay.sites:
        lines += ["", "[[site]]", f"name = {_string(site.name)}"]
        for key in ("latitude_deg", "longitude_deg", "uplink_bps", "downlink_bps"):
            value = getattr(site, key)
            if value is not None:
                lines.append(f"{key} = {_number(value)}")
    names = [_string(site.name) for site in overlay.sites]
    links = iter(overlay.links)
    link = next(links, None)
    while link is not None:
        lines += ["", "[[link]]", f"from = {names[link.source]}", f"to = {names[link.target]}"]
        lines += [_rate(link), f"latency_s = {_number(link.latency_s)}"]
        if link.latency_drift_s:
            lines.append(f"latency_drift_s = {_number(link.latency_drift_s)}")
        if link.loss:
            lines.append(f"loss = {_number(link.loss)}")
        following = next(links, None)
        if following is not None and _is_way_back(link, following):
            lines.append(f"back_{_rate(following)}")
            following = next(links, None)
        link = following
    return "\n".join(lines) + "\n"


def _is_way_back(link: Link, other: Link) -> bool:
    there = (link.source, link.target, link.latency_s, link.latency_drift_s, link.loss)
    back = (other.target, other.source, other.latency_s, other.latency_drift_s, other.loss)
    return there == back


def _rate(link: Link) -> str:
    if link.trace is None:
        return f"rate_bps = {_number(link.rate_bps)}"
    starts_s = ", ".join(map(_number, link.trace.starts_s))
    rates_bps = ", ".join(map(_number, link.trace.rates_bps))
    return f"trace = {{ starts_s = [{starts_s}], rates_bps = [{rates_bps}] }}"


def _number(value: float) -> str:
    return repr(float(value))  # float: the repr of a numpy scalar is not TOML


def _string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OverlayError(f"name {text!r} is not valid Unicode; rename it") from error
    # JSON's escapes are valid TOML, except that TOML needs DEL escaped and JSON leaves it.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
