"""A site that gossips: sends letters to neighbours, uses theirs, and keeps its clock.

Everything goes between neighbours: nothing of it needs the scheduler, so that what is cut off from
it, or from some sites, goes on with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from anabranch.exchange.actions import Action, LetterArrived, LetterTruncated, Receipt, Send
from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.letters import Letters
from anabranch.net.deadline import within
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import (
    AnyMessage,
    ChunkMessage,
    Contribution,
    Letter,
    LetterEnds,
    LetterTaken,
    Message,
    StepsKnown,
)
from anabranch.overlay import Overlay
from anabranch.period import Gossip, VectorClock
from anabranch.site._dataplane import DataPlane, Fate

_MOST_COPIES = 2
_AGAIN_S = 0.5  # after which a broken lane is made again; twice as long each time, up to
_LONGEST_AGAIN_S = 30.0
_MOST_DOUBLINGS = 10
_LEAST_DRAIN_S = 10.0
_DRAIN_ROUND_TRIPS = 20
_LATE = 3.0  # times the usual, after which a letter's answer is late
_SMOOTHING = 0.3  # of a new round trip, in the running mean of them


class Gossiping:
    """One site's side of gossip; a plug of its data plane, and in charge from begin to end.

    It is one class since letters, their repetition, the clock and the losses all go by one
    knowledge of neighbours: which are awaited, cut off or gone.

    Args:
        plane: moves letters.
        overlay: who its neighbours are, and how far.
        site: this site.
        gossip: what to do.
        letters: what is sent and what has come.
        draw: what neighbours are drawn from.
        gone: sites that were lost before.

    Attributes:
        is_finished: whether no further letters are due.
    """

    fate = Fate.REMAKE

    def __init__(
        self,
        plane: DataPlane,
        overlay: Overlay,
        site: int,
        gossip: Gossip,
        letters: Letters,
        draw: np.random.Generator,
        gone: Collection[int] = (),
    ) -> None:
        self._plane = plane
        self._gossip = gossip
        self._letters = letters
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._site = site
        links = ((other, overlay.link(site, other)) for other in range(overlay.size))
        self._latencies_s = {
            other: link.latency_s
            for other, link in links
            if link is not None and overlay.link(other, site) is not None
        }
        self._clock = VectorClock(site, overlay.size, gossip.most_ahead)
        self._heard = asyncio.Event()
        self._sent_s: dict[int, float] = {}  # when the letter to a neighbour was handed on
        self._broken: set[int] = set()  # neighbours to which there is no lane now
        self._tries: dict[int, int] = {}  # to make one, since something came from there
        self._gone = {*gone}
        for other in gone:
            letters.forget(other)
            self._clock.gone(other)
        self._is_stopping = False
        self._tells = False  # what it knows of steps, in a moment
        self._told: dict[int, tuple[int, ...]] = {}  # what each neighbour was told last
        self._is_idle = False  # nothing but gossip changes the model
        self._has_begun = False
        self.is_finished = False
        self._in_charge_later = plane.gossip(self)

    # --- what the site's program asks for

    def begin(self) -> None:
        """Say what becomes of lanes that end, from now on; before anything is sent."""
        self._has_begun = True
        self._plane.put_in_charge(self)

    async def may_step(self) -> bool:
        """Wait until another step keeps the bound on how far this site is ahead.

        Returns:
            Whether to make it; not where the run is to end.

        Raises:
            RunAborted: the run has ended; names who or what caused it.
        """
        self._plane.check()  # a site that never waits would not hear of it
        self._rest()
        while not self._clock.may_step() and not self._is_stopping:
            self._heard.clear()
            await self._plane.unless_failed(self._heard.wait())
        self._is_idle = False
        return not self._is_stopping

    def _rest(self) -> None:
        """Use what comes as soon as it does, since nothing else changes the model now."""
        self._is_idle = True
        self.use()

    def stop(self) -> None:
        """Let no further step be made."""
        self._is_stopping = True
        self._heard.set()

    def stepped(self) -> None:
        """Take note of a step, and let neighbours know."""
        self._clock.step()
        self._letters.steps = self._clock.steps
        self._tell_steps()

    def use(self) -> None:
        """Make what has come part of the model."""
        self._letters.use()

    def send(self) -> None:
        """Send the model to neighbours, as the peers' rule chooses them."""
        self._letters.late = {
            other
            for other in self._letters.awaited
            if self._loop.time() - self._sent_s[other] > _LATE * 2 * self._latencies_s[other]
        } | self._broken
        may_be = {
            other: latency_s
            for other, latency_s in self._latencies_s.items()
            if other not in {*self._letters.awaited, *self._gone, *self._broken}
        }
        everyone = len(self._latencies_s) - len(self._gone)
        chosen = self._gossip.peers.choose(may_be, everyone, self._draw)
        if not chosen:
            return
        while self._letters.copies >= _MOST_COPIES:
            oldest = self._letters.oldest
            assert oldest is not None
            if oldest not in self._letters.late:
                return  # the next time, when something has come
            for told in self._letters.take_back(oldest, self._plane.lanes.withdraw_letter(oldest)):
                if isinstance(told, LetterTruncated):
                    self._post(oldest, LetterEnds(told.number))
                elif isinstance(told, LetterArrived):
                    self._post(oldest, LetterTaken(told.number, told.is_answer))
        now_s = self._loop.time()
        self._sent_s.update(dict.fromkeys(chosen, now_s))
        self._act(self._letters.write(chosen))

    async def finish(self) -> None:
        """Make no further step, and wait until what was sent has come, where it can."""
        self._rest()
        self._clock.finish()
        self._tell_steps()
        round_trip_s = 2 * max(self._latencies_s.values(), default=0.0)
        longest_s = max(_LEAST_DRAIN_S, _DRAIN_ROUND_TRIPS * round_trip_s)
        try:
            async with within(longest_s):
                while self._letters.owes or {*self._letters.awaited} - self._gone:
                    self._heard.clear()
                    await self._plane.unless_failed(self._heard.wait())
        except TimeoutError:
            pass  # those are cut off: what was sent to them is on its way, or lost with its lane

    def end(self) -> None:
        """Use what has come, and no more after it: all sites have finished."""
        self.use()
        self._is_idle = False
        self.is_finished = True
        self._plane.put_in_charge(self._in_charge_later)

    # --- the mean of all, once no letters come

    def contribution(self) -> Floats:
        """Return this site's part of the mean: its model, each chunk times its weight."""
        return self._letters.weighted()

    @property
    def weights(self) -> bytes:
        """The weights of this site's chunks."""
        return self._letters.weights.tobytes()

    def agree(
        self, mean: Floats, weights: Mapping[int, bytes], contributions: Sequence[Contribution]
    ) -> Floats:
        """Make the model the weighted mean of sites' models; return it.

        Args:
            mean: of what they have contributed, shape (elements,).
            weights: by site.
            contributions: whose are in which elements; empty where all sites' are in all.
        """
        numbers = {site: np.frombuffer(each) for site, each in weights.items()}
        whole = [Contribution(0, len(mean), tuple(weights))]
        parts = [(each.start, each.stop, each.sites) for each in contributions or whole]
        return self._letters.agree(mean, numbers, parts)

    def _tell_steps(self) -> None:
        """Let neighbours know what this site knows of others' steps: once, of all that comes now.

        Where there is no bound, no site need know. Nor before the beginning, where a site is lost
        that was awaited: others may not have made their part yet, and would refuse the lane.
        """
        if self._has_begun and self._gossip.most_ahead is not None and not self._tells:
            self._tells = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._tells = False
        known = StepsKnown(self._clock.known)
        for neighbour in self._latencies_s:
            if self._told.get(neighbour) != known.steps:
                self._told[neighbour] = known.steps
                self._post(neighbour, known)

    def _post(self, neighbour: int, message: Message) -> None:
        """Say something to a neighbour; where its lane is broken, ``_again`` will."""
        if neighbour not in self._gone and neighbour not in self._broken:
            self._plane.lanes.say(neighbour, message)

    # --- what comes; see anabranch.site._dataplane.GossipPlug

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk of a letter goes."""
        if self.is_finished:
            return Sink()  # it was cut off while the others ended
        assert isinstance(message, Letter)
        receipt = self._letters.receive(message, payload_bytes)
        return Sink(receipt.target, None, partial(self._received, receipt))

    def _received(self, receipt: Receipt) -> None:
        self._act(self._letters.received(receipt))

    def repeated(self, message: ChunkMessage) -> bool:
        """Return False: a letter that is sent again is used once."""
        return False

    def _act(self, actions: Sequence[Action]) -> None:
        """Do what follows from a letter that is sent, or has come."""
        for action in actions:
            if isinstance(action, Send):
                self._plane.lanes.routes[action.message.path](action)
            else:
                assert isinstance(action, LetterArrived)
                self._letter_here(action)

    def _letter_here(self, here: LetterArrived) -> None:
        """Tell a neighbour that its letter has come, unless that is answered by another one."""
        if here.is_answer:
            self._measure(here.sender)
        if here.is_answer or self._gossip.rule != "pairs":
            self._post(here.sender, LetterTaken(here.number, here.is_answer))
        if self._is_idle:
            self.use()
        self._heard.set()

    def hear(self, sender: int, message: AnyMessage) -> None:
        """Act on what a neighbour says.

        Raises:
            PeerError: it cannot be.
        """
        match message:
            case LetterEnds():
                self._post(sender, LetterTaken(message.number))
            case LetterTaken():
                is_news = self._letters.settled(sender, message.number, message.is_answer)
                if is_news and not message.is_answer:
                    self._measure(sender)
            case StepsKnown():
                try:
                    is_news = self._clock.hear(message.steps)
                except ValueError as error:
                    raise MalformedMessage(str(error)) from None
                if is_news:
                    self._tell_steps()
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} where sites gossip")
        self._tries.pop(sender, None)
        self._heard.set()

    def _measure(self, neighbour: int) -> None:
        """Take note of how long a letter and its answer took: half of it is one way."""
        took_s = (self._loop.time() - self._sent_s[neighbour]) / 2
        before_s = self._latencies_s[neighbour]
        self._latencies_s[neighbour] += _SMOOTHING * (took_s - before_s)

    # --- what is lost

    def lane_ended(self, neighbour: int) -> None:
        """Make the lane to a neighbour again, in a while: it has broken.

        What may have been lost with it is said again then.
        """
        tries = self._tries[neighbour] = self._tries.get(neighbour, 0) + 1
        self._broken.add(neighbour)
        wait_s = min(_LONGEST_AGAIN_S, _AGAIN_S * 2 ** min(tries - 1, _MOST_DOUBLINGS))
        self._loop.call_later(wait_s, self._again, neighbour)

    def _again(self, neighbour: int) -> None:
        self._broken.discard(neighbour)
        if neighbour in self._gone or self.is_finished:
            return
        if self._gossip.most_ahead is not None:
            self._plane.lanes.say(neighbour, StepsKnown(self._clock.known))
        for number, is_answer in self._letters.to_confirm(neighbour):
            self._plane.lanes.say(neighbour, LetterTaken(number, is_answer))
        ended = self._letters.cut_short(neighbour)
        if ended is not None:
            self._plane.lanes.say(neighbour, LetterEnds(ended))
        self._act(self._letters.again(neighbour))

    def lost(self, site: int) -> None:
        """Go on without a site that is gone."""
        self._gone.add(site)
        self._letters.forget(site)
        self._clock.gone(site)
        self._tell_steps()
        self._heard.set()
