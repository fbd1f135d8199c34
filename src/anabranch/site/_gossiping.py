"""Gossip over a data plane: the plug that sends letters, mixes in neighbours', and keeps the clock.

The pure part (`exchange.letters`) applies letters to the model. This part decides when to send one
and to which neighbours, and repairs lanes. Gossip needs no scheduler: a site that is cut
off from it, or from some sites, continues with the neighbours that it reaches.

**A site's gossip** passes through these stages::

    made --begin--> in charge --(may_step, compute, stepped, use, send)*--> finish --> end

- *made*: neighbours that begin earlier send letters already; they are accepted.
- *in charge*: a lane that ends is made again (``Fate.REMAKE``).
- *idle* (``_is_idle``, while ``may_step`` waits and after the last step): the program does not
  touch the model, so each letter is mixed in as it arrives. Otherwise ``use`` mixes it in.
- *finish*: no more steps; wait until letters in flight are settled, up to a time limit.
- *end*: exchanges are in charge again, and average all models.

**The clock** (`period.VectorClock`) bounds how far sites' step counts differ. Each site tells its
neighbours the counts that it knows (``StepsKnown``), and passes on what it hears.

**A neighbour** is reached, broken or gone::

    reached --lane_ended--> broken --a delay, doubled each time--> _again: reached
       `---------------------- lost (by the scheduler's word) ----------------------> gone

``_again`` repeats everything that the broken lane may have lost: the steps known, confirmations,
the end of a cut letter, the letter in flight, and answers. Repetitions are harmless.

**What must never happen.** The model changes while the program computes on it. A neighbour that is
late or broken blocks letters to the others (``late``). More than two copies of the model are kept.
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

_MOST_COPIES = 2  # of the model, for letters in flight
_AGAIN_S = 0.5  # the delay before a broken lane is made again; doubled at each attempt
_LONGEST_AGAIN_S = 30.0  # the upper bound of that delay
_MOST_DOUBLINGS = 10  # so that the power stays finite
_LEAST_DRAIN_S = 10.0  # the least time limit of ``finish``
_DRAIN_ROUND_TRIPS = 20  # its time limit in round trips to the furthest neighbour
_LATE = 3.0  # a letter is late after so many times the usual round trip
_SMOOTHING = 0.3  # the weight of a new measurement in the moving average of latencies


class Gossiping:
    """One site's side of gossip; a plug of its data plane, in charge from ``begin`` to ``end``.

    It is one class since letters, resends, the clock and losses all depend on the state of each
    neighbour.

    Args:
        plane: moves letters.
        overlay: the sites' links; neighbours are those linked in both directions.
        site: this site's index.
        gossip: the gossip's parameters.
        letters: this site's letters.
        draw: the generator that chooses neighbours.
        gone: sites that were lost before gossip began here.

    Attributes:
        is_finished: whether ``end`` was called; later letters are discarded.
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
        self._sent_s: dict[int, float] = {}  # when the letter to a neighbour was queued
        self._broken: set[int] = set()  # neighbours whose lane has ended
        self._tries: dict[int, int] = {}  # attempts since a neighbour was heard last
        self._gone = {*gone}
        for other in gone:
            letters.forget(other)
            self._clock.gone(other)
        self._is_stopping = False
        self._tells = False  # whether `_tell` is scheduled
        self._told: dict[int, tuple[int, ...]] = {}  # the step counts last sent to each neighbour
        self._is_idle = False  # only gossip changes the model now
        self._has_begun = False
        self.is_finished = False
        self._in_charge_later = plane.gossip(self)

    # --- the program's calls

    def begin(self) -> None:
        """Take charge of the data plane; call it before anything is sent."""
        self._has_begun = True
        self._plane.put_in_charge(self)

    async def may_step(self) -> bool:
        """Wait until one more step keeps this site within the bound on its lead.

        Returns:
            Whether to make the step; False after ``stop``.

        Raises:
            RunAborted: the run has ended; names the site or error that caused it.
        """
        self._plane.check()  # a site that never waits would not notice a failure
        self._rest()
        while not self._clock.may_step() and not self._is_stopping:
            self._heard.clear()
            await self._plane.unless_failed(self._heard.wait())
        self._is_idle = False
        return not self._is_stopping

    def _rest(self) -> None:
        """Mix letters in as they arrive, since only gossip changes the model now."""
        self._is_idle = True
        self.use()

    def stop(self) -> None:
        """Permit no further steps."""
        self._is_stopping = True
        self._heard.set()

    def stepped(self) -> None:
        """Count a step, and tell neighbours."""
        self._clock.step()
        self._letters.steps = self._clock.steps
        self._tell_steps()

    def use(self) -> None:
        """Mix what has arrived into the model."""
        self._letters.use()

    def send(self) -> None:
        """Send the model to the neighbours that the rule for peers chooses."""
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
                return  # it is in time: wait for its answer rather than lose the copy
            for told in self._letters.take_back(oldest, self._plane.lanes.withdraw_letter(oldest)):
                if isinstance(told, LetterTruncated):
                    self._post(oldest, LetterEnds(told.number))
                elif isinstance(told, LetterArrived):
                    self._post(oldest, LetterTaken(told.number, told.is_answer))
        now_s = self._loop.time()
        self._sent_s.update(dict.fromkeys(chosen, now_s))
        self._act(self._letters.write(chosen))

    async def finish(self) -> None:
        """Make no further step; wait until letters in flight are settled, up to a time limit."""
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
            pass  # these neighbours are cut off; their letters may arrive yet, or are lost

    def end(self) -> None:
        """Mix in what has arrived, and discard later letters: all sites have finished."""
        self.use()
        self._is_idle = False
        self.is_finished = True
        self._plane.put_in_charge(self._in_charge_later)

    # --- the mean of all models, after `end`

    def contribution(self) -> Floats:
        """Return this site's contribution: its model, each chunk multiplied by its weight."""
        return self._letters.weighted()

    @property
    def weights(self) -> bytes:
        """The weights of this site's chunks, as float64 bytes."""
        return self._letters.weights.tobytes()

    def agree(
        self, mean: Floats, weights: Mapping[int, bytes], contributions: Sequence[Contribution]
    ) -> Floats:
        """Set the model to the weighted mean of the sites' models; return it.

        Args:
            mean: the mean of the sites' contributions, shape (elements,).
            weights: each site's ``weights``, by site.
            contributions: the sites that ``mean`` is of, by elements; empty where all sites are in
                all elements.
        """
        numbers = {site: np.frombuffer(each) for site, each in weights.items()}
        whole = [Contribution(0, len(mean), tuple(weights))]
        parts = [(each.start, each.stop, each.sites) for each in contributions or whole]
        return self._letters.agree(mean, numbers, parts)

    def _tell_steps(self) -> None:
        """Tell neighbours the step counts that this site knows, once for all that arrive now.

        Not without a bound, since no site needs the counts then. Not before ``begin`` either, when
        a loss calls this: neighbours may not gossip yet, and would refuse the message.
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
        """Send a message to a neighbour; if its lane is broken, ``_again`` will repeat it."""
        if neighbour not in self._gone and neighbour not in self._broken:
            self._plane.lanes.say(neighbour, message)

    # --- as a plug; see anabranch.site._dataplane.GossipPlug

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        """Return where a chunk of a letter goes."""
        if self.is_finished:
            return Sink()  # the sender was cut off while the others ended; discard
        assert isinstance(message, Letter)
        receipt = self._letters.receive(message, payload_bytes)
        return Sink(receipt.target, None, partial(self._received, receipt))

    def _received(self, receipt: Receipt) -> None:
        self._act(self._letters.received(receipt))

    def repeated(self, message: ChunkMessage) -> bool:
        """Return False: a letter that is sent again is used once."""
        return False

    def _act(self, actions: Sequence[Action]) -> None:
        """Execute actions of the pure part."""
        for action in actions:
            if isinstance(action, Send):
                self._plane.lanes.routes[action.message.path](action)
            else:
                assert isinstance(action, LetterArrived)
                self._letter_here(action)

    def _letter_here(self, here: LetterArrived) -> None:
        """Confirm a complete letter or answer. In pairs the answers themselves confirm a letter."""
        if here.is_answer:
            self._measure(here.sender)
        if here.is_answer or self._gossip.rule != "pairs":
            self._post(here.sender, LetterTaken(here.number, here.is_answer))
        if self._is_idle:
            self.use()
        self._heard.set()

    def hear(self, sender: int, message: AnyMessage) -> None:
        """Act on a neighbour's message.

        Raises:
            PeerError: the message is malformed, or out of place.
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
        """Update a neighbour's latency: half the time that a letter and its answer took."""
        took_s = (self._loop.time() - self._sent_s[neighbour]) / 2
        before_s = self._latencies_s[neighbour]
        self._latencies_s[neighbour] += _SMOOTHING * (took_s - before_s)

    # --- losses

    def lane_ended(self, neighbour: int) -> None:
        """Schedule a new lane to a neighbour, and the repetition of what may be lost."""
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
        """Forget a site that is lost for good."""
        self._gone.add(site)
        self._letters.forget(site)
        self._clock.gone(site)
        self._tell_steps()
        self._heard.set()
