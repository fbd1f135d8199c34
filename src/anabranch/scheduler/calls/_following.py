"""Members that follow: they have yet to get the state of training, and to catch up. Pure.

Members let further sites in by a gathering. What they exchange next may hand the state of training
to those (a *transfer*); from then on these follow. They contribute nothing to the exchanges of all
sites, and hear of each one, until they say that they are in step.

Who follows is fixed for each exchange by the first request for it: one that begins later, as it
waits for room, has the followers of then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from anabranch.net.messages import Called, ChannelStanding, Signature
from anabranch.scheduler._exchanges import ExchangeBook


class Following:
    """Who follows the calls of all sites, and which exchanges hand the state on.

    Args:
        book: of the calls of all sites.

    Attributes:
        sites: those that follow now.
    """

    def __init__(self, book: ExchangeBook) -> None:
        self._book = book
        self.sites: set[int] = set()
        self._begins_with_transfer = False  # for those that the state is handed to next
        self._transfers: list[int] = []  # the exchanges that hand the state on
        # Those of exchanges that were asked for and have not begun, by number.
        self._of: dict[int, frozenset[int]] = {}

    def expect(self, is_expected: bool) -> None:
        """Take note whether those that the state is handed to next follow from then on."""
        self._begins_with_transfer = is_expected

    def note_transfer(self, number: int) -> None:
        """Take note that an exchange hands the state on, as a member asks for it."""
        self._transfers.append(number)

    def round_of(self, number: int) -> int | None:
        """Return which round an exchange of all sites is; None where it hands the state on.

        Rounds are counted from 1.
        """
        if number in self._transfers:
            return None
        return number - sum(transfer < number for transfer in self._transfers)

    def number_of(self, round: int) -> int:
        """Return which exchange of all sites a round is, if no other one hands the state on."""
        number = round
        for transfer in sorted(self._transfers):
            number += transfer <= number
        return number

    @property
    def transfers(self) -> tuple[int, ...]:
        """The exchanges that hand the state on, for a scheduler that is started again."""
        return tuple(self._transfers)

    def recall(self, transfers: Iterable[int]) -> None:
        """Take up which exchanges have handed the state on, as a scheduler that was restarted."""
        self._transfers = [*transfers]

    def asked(self, site: int, number: int, signature: Signature) -> list[tuple[int, Called]]:
        """Take the first request for an exchange; return which sites are told of it."""
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
    ) -> list[tuple[int, Called]]:
        """Return which members that follow are told of a call that a site was the first to make.

        Args:
            site: that made it.
            number: of the exchange, or of the gathering that lets others in.
            signature: of the exchange; None for a gathering.
        """
        called = Called(number, self._book.order.made(site), signature)
        source = None if signature is None else signature.source
        return [(each, called) for each in sorted(self.sites - {site, source})]

    def take(self, number: int) -> frozenset[int]:
        """Return which members follow in an exchange that begins, or has failed before it could."""
        return self._of.pop(number, frozenset())

    def restore(
        self, said: Mapping[int, ChannelStanding], follow: Collection[int]
    ) -> list[tuple[int, Called]]:
        """Take up who follows after a restart; return which calls those are told of again.

        Args:
            said: what each member says of the calls of all sites.
            follow: those that say that they follow.
        """
        self.sites = {*follow}
        made: dict[int, Called] = {}  # by place
        for each in said.values():
            for exchange in each.exchanges:
                if exchange.exchange or exchange.signature.receivers:
                    continue
                follows = {*exchange.followers} | self.sites
                before = self._of.get(exchange.number, frozenset())
                self._of[exchange.number] = before | follows
            made |= {
                one.place: Called(one.number, one.place, one.signature)
                for one in each.exchanges
                if not one.signature.receivers
            }
            made |= {
                one.place: Called(one.number, one.place, None)
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
