"""Error messages for the users at the sites: why a call cannot end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.exchange.terms import terms_of
from anabranch.net.messages import Signature
from anabranch.scheduler.calls._answer import Call, Disagreement, Kind, MixedKinds

Name = Callable[[int], str]
"""Returns a site's name for error messages."""


def of_disagreement(disagreement: Disagreement, name: Name) -> str:
    """Name two members that ask for different exchanges under one number."""

    def what(index: int) -> str:
        site, asked = disagreement.sites[index], disagreement.signatures[index]
        return f"{name(site)} calls for a {terms_of(asked)}"

    return (
        f"{what(0)}, {what(1)}, as exchange {disagreement.number} of the same members; "
        "call the same exchanges in the same order at every site"
    )


def of_mixed(mixed: MixedKinds, name: Name) -> str:
    """Name two members that make calls of two kinds in one place."""

    def does(made: Call) -> str:
        if isinstance(made.what, Signature):
            return f"exchanges a {terms_of(made.what)}"
        if made.kind == Kind.ADMIT:
            return "lets others in (admit)"
        return f"gathers ({made.what or 'all_gather or barrier'})"

    made = " and ".join(f"{name(each.site)} {does(each)}" for each in mixed.made)
    return (
        f"{made} as call {mixed.call} of the same members; make the same calls in the same "
        "order at every site"
    )


def of_order(
    one: tuple[int, tuple[int, ...], str], other: tuple[int, tuple[int, ...], str], name: Name
) -> str:
    """Name two members that ask for their common subgroups in different orders.

    Args:
        one, other: a site, the members of the subgroup that it asks for, and the subgroup's name.
        name: returns a site's name.
    """

    def account(site: int, members: tuple[int, ...], called: str) -> str:
        named = f" named {called!r}" if called else ""
        among = ", ".join(map(name, members))
        return f"{name(site)} asks for a subgroup{named} of {among}"

    return (
        f"{account(*one)}; {account(*other)}; ask for the same subgroups in the same order at "
        "every site"
    )


def of_absence(site: int, name: Name) -> str:
    """Say that a call cannot end, because a member left without making it."""
    return f"{name(site)} has left, and not made this call"


def of_lost_sources(sources: Collection[int], name: Name) -> str:
    """Say that a broadcast cannot end, because the sites that had all of it are lost."""
    lost = ", ".join(map(name, sorted(sources)))
    return (
        f"{lost} is lost, and with it a part of what it broadcast, which no other site "
        "has; the tensors hold a part of it"
    )


def of_call(place: int, kind: Kind, subgroup: Collection[int] | None, name: Name) -> str:
    """Name a call.

    Args:
        place: among all calls of its members, from 1.
        kind: of the call.
        subgroup: the members of a subgroup; None for the channel of all sites.
        name: returns a site's name.
    """
    kinds = {Kind.EXCHANGE: "an exchange", Kind.GATHER: "a gathering", Kind.ADMIT: "admit"}
    call = f"call {place} ({kinds[kind]})"
    if subgroup is None:
        return call
    return f"{call} of the subgroup {', '.join(map(name, subgroup))}"
