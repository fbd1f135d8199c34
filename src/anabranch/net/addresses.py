"""Addresses as text: host:port, with brackets around an IPv6 host. Pure."""

from __future__ import annotations

import ipaddress

from anabranch.net.network import Address

OUTBOUND_ONLY = "-"
"""Stands for the host of a site that takes no connections; its port is then the site's index."""

ListenAt = tuple[str | None, int]
"""Where a site takes connections; no host: the address from which it reaches its scheduler."""

_LOOPBACK = "127.0.0.1"
_MOST_PORT = (1 << 16) - 1


def parse(text: str) -> Address:
    """Return the host and port of a text.

    Raises:
        ValueError: the text is not host:port; the message tells how to write it.

    >>> parse("10.0.0.1:7700"), parse("[::1]:0"), parse("paris.example.org:7700")
    (('10.0.0.1', 7700), ('::1', 0), ('paris.example.org', 7700))
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not host:port; write an IPv6 address in brackets")
    if not host or not colon or not port.isascii() or not port.isdigit() or int(port) > _MOST_PORT:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def show(address: Address) -> str:
    """Return an address as text for ``parse``; "outbound only" where a site takes no connections.

    >>> show(("10.0.0.1", 7700)), show(("::1", 7700))
    ('10.0.0.1:7700', '[::1]:7700')
    """
    host, port = address
    if host == OUTBOUND_ONLY:
        return "outbound only"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def takes_calls(address: Address) -> bool:
    """Return whether a site with this address has joined and takes connections.

    >>> takes_calls(("10.0.0.1", 7700)), takes_calls((OUTBOUND_ONLY, 3)), takes_calls(("", 0))
    (True, False, False)
    """
    return address[0] not in ("", OUTBOUND_ONLY)


def is_loopback(host: str) -> bool:
    """Return whether a host, by name or number, is this machine itself.

    >>> [is_loopback(host) for host in ("localhost", "127.0.1.1", "::1", "10.0.0.1", "paris")]
    [True, True, True, False, False]
    """
    number = _number(host)
    return host == "localhost" if number is None else number.is_loopback


def is_wildcard(host: str) -> bool:
    """Return whether a host is a wildcard for all addresses of a machine, and no destination.

    >>> [is_wildcard(host) for host in ("", "0.0.0.0", "::", "10.0.0.1", "paris")]
    [True, True, True, False, False]
    """
    number = _number(host)
    return not host if number is None else number.is_unspecified


def are_on_one_machine(hosts: tuple[str, str]) -> bool:
    """Return whether a connection between these two addresses stays within one machine.

    >>> are_on_one_machine(("127.0.0.1", "127.0.0.1")), are_on_one_machine(("10.0.0.2", "10.0.0.1"))
    (True, False)
    """
    own, other = hosts
    return own == other or is_loopback(own)


def host_to_listen_on(host: str | None, advertise: str | None, hosts: tuple[str, str]) -> str:
    """Return the host on which a site takes connections, so that other sites reach it.

    Args:
        host: the host that the user chose; None for the address from which the site reaches its
            scheduler, or loopback if the scheduler is on this machine.
        advertise: the host to which the user told others to connect; None for ``host``.
        hosts: the hosts of the site's connection to the scheduler: its own and the scheduler's.

    Raises:
        ValueError: other machines would look for the site on their own loopback; the message tells
            what to give.

    >>> host_to_listen_on(None, None, ("10.0.0.2", "10.0.0.1"))
    '10.0.0.2'
    >>> host_to_listen_on(None, None, ("::1", "::1"))
    '127.0.0.1'
    """
    own, scheduler = hosts
    if host is None:
        host = _LOOPBACK if is_loopback(own) else own
    if is_loopback(advertise or host) and not are_on_one_machine(hosts):
        given = f"advertise is {advertise!r}" if advertise else f"host is {host!r}"
        raise ValueError(
            f"{given}, where only this machine's own processes find this site, and its scheduler "
            f"is on another machine, {scheduler}; give the address at which other machines reach "
            f"this one, or neither: then it is {own}, from which it reaches the scheduler"
        )
    return host


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
