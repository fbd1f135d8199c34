"""A site's name and addresses, from arguments and the environment of its process. Pure.

An argument overrides a variable. The cluster's own variables come last: under Slurm (``srun``) and
in an indexed Job of Kubernetes each process has an index, and its site is the name at that index in
``$ANABRANCH_SITES``. So one command starts all sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.net.addresses import is_wildcard

SCHEDULER_VARIABLE = "ANABRANCH_SCHEDULER"
SITE_VARIABLE = "ANABRANCH_SITE"
SITES_VARIABLE = "ANABRANCH_SITES"
TOKEN_VARIABLE = "ANABRANCH_TOKEN"
HOST_VARIABLE = "ANABRANCH_HOST"
PORT_VARIABLE = "ANABRANCH_PORT"
ADVERTISE_VARIABLE = "ANABRANCH_ADVERTISE"
OUTBOUND_ONLY_VARIABLE = "ANABRANCH_OUTBOUND_ONLY"
TLS_VARIABLE = "ANABRANCH_TLS"
INSECURE_VARIABLE = "ANABRANCH_INSECURE"

INDEX_VARIABLES = "SLURM_PROCID", "JOB_COMPLETION_INDEX"
"""This process's index, from 0: under Slurm, and in an indexed Job of Kubernetes."""
NODE_VARIABLE = "SLURMD_NODENAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A site's name and addresses, with which it joins; see :func:`anabranch.join`.

    Args:
        scheduler: the scheduler's host:port.
        site: the site's name.
        token: the group's secret.
        host: the address at which other sites connect; None for the address from which this site
            reaches the scheduler.
        port: likewise; 0 takes a free one.
        advertise: the host at which others reach this site; None for ``host``.
        outbound_only: whether no other site can connect to this one; it excludes the three above.
        tls: the folder of the site's certificate; None for no TLS.
        insecure: whether addresses off this machine are permitted without TLS.
    """

    scheduler: str
    site: str
    token: str
    host: str | None = None
    port: int = 0
    advertise: str | None = None
    outbound_only: bool = False
    tls: str | None = None
    insecure: bool = False


def find(
    environment: Mapping[str, str],
    *,
    scheduler: str | None = None,
    site: str | None = None,
    token: str | None = None,
    host: str | None = None,
    port: int | None = None,
    advertise: str | None = None,
    outbound_only: bool = False,
    tls: str | None = None,
    insecure: bool = False,
) -> Place:
    """Return a site's name and addresses.

    Args:
        environment: the process's variables.
        scheduler, site, token, host, port, advertise, outbound_only, tls, insecure: the program's
            arguments; see ``Place``.

    Raises:
        ValueError: a value is missing or invalid; says how to give it. Or a site with
            ``outbound_only`` has a host, port or advertised host.

    >>> under_slurm = {"SLURM_PROCID": "1", "SLURMD_NODENAME": "node7"}
    >>> ours = {"ANABRANCH_SITES": "paris,austin", "ANABRANCH_HOST": "0.0.0.0"}
    >>> place = find(under_slurm | ours, scheduler="head:7700", token="secret")
    >>> place.site, place.host, place.advertise
    ('austin', '0.0.0.0', 'node7')
    """

    def said(variable: str) -> str | None:
        return environment.get(variable) or None  # an empty variable counts as unset

    own_host, own_port, own_advertise = host, port, advertise
    if outbound_only:
        # The argument overrides variables, so those of these three are not read.
        if (host, port, advertise) != (None, None, None):
            raise ValueError(
                "outbound_only: this site takes no connections, so give no host, port or advertise"
            )
    else:
        own_host = host or said(HOST_VARIABLE)
        own_port = _port(said(PORT_VARIABLE)) if port is None else port
        own_advertise = advertise or said(ADVERTISE_VARIABLE)
        outbound_only = flag(environment, OUTBOUND_ONLY_VARIABLE)
        if outbound_only and (own_host or own_port or own_advertise):
            raise ValueError(
                f"${OUTBOUND_ONLY_VARIABLE} is set: this site takes no connections, so set no "
                f"${HOST_VARIABLE}, ${PORT_VARIABLE} or ${ADVERTISE_VARIABLE}, and give no host, "
                "port or advertise"
            )
    if own_advertise is None and own_host is not None and is_wildcard(own_host):
        own_advertise = said(NODE_VARIABLE)
    return Place(
        scheduler=_given(scheduler, environment, SCHEDULER_VARIABLE, "scheduler", "its host:port"),
        site=site or said(SITE_VARIABLE) or _by_index(environment),
        token=_given(token, environment, TOKEN_VARIABLE, "token", "the group's shared secret"),
        host=own_host,
        port=own_port or 0,
        advertise=own_advertise,
        outbound_only=outbound_only,
        tls=tls or said(TLS_VARIABLE),
        insecure=insecure or flag(environment, INSECURE_VARIABLE),
    )


def _given(
    value: str | None, environment: Mapping[str, str], variable: str, name: str, what: str
) -> str:
    given = environment.get(variable, "") if value is None else value
    if not given:
        raise ValueError(f"{name} is not given: pass {name}=, {what}, or set ${variable}")
    return given


def _by_index(environment: Mapping[str, str]) -> str:
    """Return the name of the site whose process has this index."""
    variable = next((each for each in INDEX_VARIABLES if environment.get(each)), None)
    names = [name.strip() for name in environment.get(SITES_VARIABLE, "").split(",")]
    if variable is None or not any(names):
        raise ValueError(
            f"site is not given: pass site=, this site's name in the overlay, or set "
            f"${SITE_VARIABLE}; or ${SITES_VARIABLE}, the names of all, where "
            f"${' or $'.join(INDEX_VARIABLES)} says which it is"
        )
    index = environment[variable]
    if not index.isdecimal() or int(index) >= len(names):
        raise ValueError(
            f"${variable} is {index!r}, and ${SITES_VARIABLE} has names for 0..{len(names) - 1}; "
            "start as many processes as it has names"
        )
    return names[int(index)]


def _port(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"${PORT_VARIABLE} is {text!r}, which is no port")
    return int(text)


def flag(environment: Mapping[str, str], variable: str) -> bool:
    """Return whether a variable is set to 1.

    Raises:
        ValueError: the variable is neither 1 nor 0, "true" nor "false".
    """
    text = environment.get(variable) or "0"
    if text in ("0", "false"):
        return False
    if text not in ("1", "true"):
        raise ValueError(f"${variable} is {text!r}; give 1 or 0")
    return True
