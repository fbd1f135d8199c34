"""Whatever sites call for, lose and say, in whatever order: the books refuse it or go on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from anabranch import plan as plans
from anabranch.net.errors import PeerError
from anabranch.net.messages import (
    ChannelSnapshot,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Gather,
    Grant,
    Holding,
    Interrupt,
    NoMoreRounds,
    OpenExchange,
    Signature,
    SiteSnapshot,
    Subgrouped,
)
from anabranch.overlay import random_complete
from anabranch.plan import Plan, fapt
from anabranch.scheduler._channels import Channels
from anabranch.scheduler.calls._outcome import Outcome

SITES = 4
OVERLAY = random_complete(SITES, 0)
SIGNATURES = (
    *(Signature(0, 0, elements) for elements in (1, 100, 9_000)),
    Signature(4, 0, 100, source=1),
    Signature(4, 0, 100, receivers=(2,)),
)
CALLS: list[Signature | bool] = [*SIGNATURES, False, True]  # a gathering may let others in


@dataclass
class Made:
    """What a site has called for in a channel."""

    asked: int = 0
    gathered: int = 0
    open: dict[int, OpenExchange] = field(default_factory=dict)


class Drawn:
    """A run whose sites do what is drawn, most of it in an order that can be.

    Args:
        seed: of what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.most_bytes = self.draw.choice([math.inf, 400])
        self.odd = self.draw.choice([0.0, 0.02])  # how often a site calls for what others do not
        self.version = 1
        self.channels = self.made_new()
        self.made: dict[tuple[int, int], Made] = {}  # by site and channel
        self.calls: dict[tuple[int, int], Signature | bool] = {}  # by channel and place
        self.left: set[int] = set()
        self.interrupted: list[tuple[int, Interrupt]] = []

    def made_new(self) -> Channels:
        plan = fapt(OVERLAY, roots=SITES)
        return Channels(str, SITES, plan, self.most_bytes, lambda plan, elements: 10, None, True)

    def next_plan(self) -> Plan:
        self.version += 1
        return fapt(OVERLAY, roots=1, version=self.version)

    @property
    def here(self) -> list[int]:
        return [*self.channels.books.members(0)]

    def of(self, site: int, channel: int) -> Made:
        return self.made.setdefault((site, channel), Made())

    def follow(self, ask: Callable[[], Outcome]) -> bool:
        """Take what the books answer; return whether they did not refuse what was asked."""
        try:
            outcome = ask()
        except PeerError:
            return False
        is_held = True
        for site, message in outcome.say:
            if isinstance(message, Interrupt):
                self.interrupted.append((site, message))
            elif isinstance(message, Subgrouped):
                self.of(site, message.channel)
            elif isinstance(message, ExchangeFailed):
                self.of(site, message.channel).open.pop(message.number, None)
            elif isinstance(message, NoMoreRounds):
                is_held = False
            elif isinstance(message, Grant):
                made = self.of(site, message.channel)
                asked = made.open.get(message.number)
                assert asked is not None, "an exchange is granted that was not asked for"
                granted = message.exchange, message.chunk_elements, 0, (message.exchange,)
                made.open[message.number] = OpenExchange(
                    asked.number, asked.signature, asked.place, *granted
                )
        if outcome.admission is not None:
            self.admit(*outcome.admission)
        return is_held

    def call(self, site: int) -> None:
        known = [channel for who, channel in self.made if who == site]
        channel = self.draw.choice([0, *known])
        made = self.of(site, channel)
        place = made.asked + made.gathered + 1
        drawn = self.draw.choice(CALLS)
        what = self.calls.setdefault((channel, place), drawn)
        if self.draw.random() < self.odd:
            what = drawn
        if isinstance(what, Signature):
            number = made.asked + 1
            made.open[number] = OpenExchange(number, what, place, 0, 0, 0, ())
            request = ExchangeRequest(channel, number, what)
            made.asked += 1
            if not self.follow(lambda: self.channels.request(site, request)):
                made.asked -= 1
                made.open.pop(number, None)
            return
        gather = Gather(channel, made.gathered + 1, b"value", admits=what and not channel)
        made.gathered += 1
        if not self.follow(lambda: self.channels.gather(site, gather)):
            made.gathered -= 1

    def subgroup(self, site: int) -> None:
        others = self.draw.sample(range(SITES), k=self.draw.randint(1, SITES))
        members = tuple(sorted({site, *others}))
        name = self.draw.choice(["", "other"])
        self.follow(lambda: self.channels.subgroup(site, members, name))

    def hold(self, site: int) -> None:
        answers = [each for each in self.interrupted if each[0] == site]
        if answers:
            self.interrupted.remove(answers[0])
            of = answers[0][1]
            held = Holding(of.channel, of.number, of.generation, ())
            self.follow(lambda: self.channels.hold(site, held))
        begun = [
            (channel, said)
            for (who, channel), made in self.made.items()
            for said in made.open.values()
            if who == site and said.exchange
        ]
        if not begun:
            return
        channel, said = self.draw.choice(begun)
        every = ((0, said.signature.elements),)
        generation = self.draw.choice([0, 0, 1])
        self.follow(
            lambda: self.channels.hold(site, Holding(channel, said.number, generation, every))
        )
        book = self.channels.books[channel]
        if said.number in book.held and self.channels._settling.get(channel, said.number) is None:
            del self.of(site, channel).open[said.number]
            version = book.held[said.number].plan.version
            ended = ExchangeEnded(channel, said.number, version, 0.1, 5)
            self.follow(lambda: self.channels.ended(site, ended))

    def leave(self, site: int) -> None:
        self.left.add(site)
        self.follow(lambda: self.channels.leave(site))

    def lose(self, *sites: int) -> None:
        left = set(self.here) - {*sites}
        if left:
            self.follow(lambda: self.channels.lose(sites, plans.restrict(self.next_plan(), left)))
            self.made = {key: made for key, made in self.made.items() if key[0] not in sites}

    def admit(self, number: int, holders: frozenset[int]) -> None:
        back = set(range(SITES)) - set(self.here) - self.left
        if self.channels.is_busy:
            back = set()
        members = back | {*self.here}
        plan = plans.restrict(self.next_plan(), members) if back else self.channels.all.plan
        first = self.of(min(self.here), 0)
        for site in back:
            self.made[site, 0] = Made(first.asked, first.gathered)
        self.follow(lambda: self.channels.admit(number, back, holders, plan, follow=True))

    def restart(self) -> None:
        """Let the scheduler begin anew, from what all members but one say."""
        before, here = self.channels, self.here
        silent = self.draw.choice(here) if len(here) > 1 else -1
        snapshots = {}
        for site in {*here} - {silent}:
            said = [
                ChannelSnapshot(
                    channel, 1, made.asked, made.gathered, tuple(made.open.values()), (), ()
                )
                for (who, channel), made in self.made.items()
                if who == site
            ]
            snapshots[site] = SiteSnapshot((*said,), is_new=False)
        self.channels = again = self.made_new()
        latest, contributions = before.latest_exchange + 1_000, before.contributions
        lost = {*range(SITES)} - {*here}
        self.interrupted = []
        self.follow(lambda: again.restore(snapshots, lost, before.subgroups, latest, contributions))
        self.lose(silent)

    def step(self) -> None:
        site = self.draw.choice(self.here)
        does = self.draw.random()
        if does < 0.5 and site not in self.left:
            self.call(site)
        elif does < 0.85:
            self.hold(site)
        elif does < 0.92 and site not in self.left:
            self.subgroup(site)
        elif does < 0.93:
            self.leave(site)
        elif does < 0.97:
            self.lose(site)
        elif does < 0.975:
            self.channels.close("a rule")
        elif does < 0.98:
            self.restart()

    def check(self) -> None:
        """What is known of an exchange besides its book's is of one that the book holds."""
        books = self.channels.books
        assert books.counter.bytes_under_way == sum(
            0 if held.signature.receivers else 4 * held.signature.elements
            for book in books
            for held in map(book.held.__getitem__, book.held.numbers)
        )
        for channel, number in self.channels.contributions:
            assert number in books[channel].held
        assert books.stalls() is not None
        assert len({book.end.last is None for book in books}) == 1  # all are closed, or none is
        assert len(self.channels.subgroups) == len(books) - 1


@pytest.mark.parametrize("seed", range(100))
def test_whatever_sites_call_for_the_books_refuse_it_or_go_on(seed: int) -> None:
    run = Drawn(seed)
    for _ in range(150):
        run.step()
        run.check()
