"""Members that follow: newcomers that do not have the state of training yet. Pure.

Members admit newcomers by a gathering. The next exchange may hand the state of training to these (a
*transfer*), and from then on they follow::

    member ──a transfer names it as receiver──▶ follows ──says that it is in step──▶ member

A follower contributes nothing to the exchanges of all sites. It hears of each with `CallMade`, so
that its program can make the same calls later and catch up.

The first request for an exchange fixes its followers, also where the exchange waits for room and
begins later. Members would otherwise expect contributions of different sites.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from anabranch.net.messages import CallMade, ChannelSnapshot, Signature
from anabranch.scheduler._exchanges import ExchangeBook


class Following:
    """The followers of the calls of all sites, and the exchanges that hand the state on.

    Args:
        book: of the calls of all sites.

    Attributes:
        sites: the present followers.
    """

    def __init__(self, book: ExchangeBook) -> None:
        self._book = book
        self.sites: set[int] = set()
        self._begins_with_transfer = False  # whether the receivers of the next transfer follow
        self._transfers: list[int] = []  # their numbers
        # By number, the followers of exchanges that were asked for and have not begun.
        self._of: dict[int, frozenset[int]] = {}

    @property
    def are_expected(self) -> bool:
        """Whether members follow, or the next transfer makes some follow."""
        return bool(self.sites) or self._begins_with_transfer

    def expect(self, is_expected: bool) -> None:
        """Note whether the receivers of the next transfer follow from then on."""
        self._begins_with_transfer = is_expected

    def note_transfer(self, number: int) -> None:
        """Note that a member asks for a transfer."""
        self._transfers.append(number)

    def round_of(self, number: int) -> int | None:
        """Return the round of an exchange of all sites, from 1; None for a transfer."""
        if number in self._transfers:
            return None
        return number - sum(transfer < number for transfer in self._transfers)

    def number_of(self, round: int) -> int:
        """Return the number of a round's exchange, if no further exchange is a transfer."""
        number = round
        for transfer in sorted(self._transfers):
            number += transfer <= number
        return number

    @property
    def transfers(self) -> tuple[int, ...]:
        """The numbers of the transfers, for the journal."""
        return tuple(self._transfers)

    def recall(self, transfers: Iterable[int]) -> None:
        """Restore the numbers of the transfers from before a restart."""
        self._transfers = [*transfers]

    def asked(self, site: int, number: int, signature: Signature) -> list[tuple[int, CallMade]]:
        """Fix the followers of an exchange at its first request; return the messages to them."""
        if signature.receivers and self._begins_with_transfer:
            self._begins_with_transfer = False
            self.sites |= {*signature.receivers} & {*self._book.members}
            return []
        if not self.sites:
            return []
        self._of[number] = frozenset(self.sites)
        return self.called(site, number, signature)

    def called(
        self, site: int, number: int, signature: Signature | None
    ) -> list[tuple[int, CallMade]]:
        """Return the messages that tell followers of a call.

        Args:
            site: the first to make it.
            number: of the exchange, or of the gathering that admits newcomers.
            signature: of the exchange; None for a gathering.
        """
        called = CallMade(number, self._book.order.made(site), signature)
        source = None if signature is None else signature.source
        return [(each, called) for each in sorted(self.sites - {site, source})]

    def take(self, number: int) -> frozenset[int]:
        """Return and forget the followers of an exchange that begins, or fails before that."""
        return self._of.pop(number, frozenset())

    def restore(
        self, said: Mapping[int, ChannelSnapshot], follow: Collection[int]
    ) -> list[tuple[int, CallMade]]:
        """Restore the followers after a restart; return the messages that tell them of calls again.

        Args:
            said: each member's report about the calls of all sites.
            follow: the members that report that they follow.
        """
        self.sites = {*follow}
        made: dict[int, CallMade] = {}  # by place
        for each in said.values():
            for exchange in each.exchanges:
                if exchange.exchange or exchange.signature.receivers:
                    continue
                follows = {*exchange.followers} | self.sites
                before = self._of.get(exchange.number, frozenset())
                self._of[exchange.number] = before | follows
            made |= {
                one.place: CallMade(one.number, one.place, one.signature)
                for one in each.exchanges
                if not one.signature.receivers
            }
            made |= {
                one.place: CallMade(one.number, one.place, None)
                for one in each.gatherings
                if one.admits and one.number
            }
        for number in self._book.held.numbers:
            self._of.pop(number, None)
        return [
            (site, called)
            for site in sorted(self.sites)
            for place, called in sorted(made.items(), key=lambda each: each[0])
            if place > self._book.order.made(site)
            and (called.signature is None or called.signature.source != site)
        ]
