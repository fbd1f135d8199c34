"""The messages between sites, and between a site and the scheduler, as types.

A message travels as a msgpack array ``[type, field, ...]``; bulk data follows it as a raw payload
(see :mod:`anabranch.net.frames`). Sites are named by their index in the overlay.

All messages are in one file, because the decoder must know every type. Several files would all be
loaded by every client, and the modules that a client loads are bounded
(`tests/group/test_client_modules.py`).
"""

from __future__ import annotations

import msgspec

WIRE_VERSION = 40
MOST_GATHERED_BYTES = 1 << 20
"""The largest value that a site may contribute to a gathering (:class:`Gather`)."""
MOST_NAME_CHARACTERS = 200  # of a subgroup's name, and of a gathering's purpose


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of every message."""


# --- between sites ---------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message on a connection of a lane: the sender's identity, and the site it wants.

    Attributes:
        proof: see :mod:`anabranch.net.identity`.
        source: the sender.
        target: the site that it means to reach.
        strand: the index of this connection among those of the lane, from 0.
        strands: the number of connections of the lane.
        incarnation: the sender's incarnation, see :class:`Welcome`.
    """

    proof: bytes
    source: int
    target: int
    strand: int = 0
    strands: int = 1
    incarnation: int = 0


class Offer(Message, frozen=True):
    """The first message from a site that takes no connections: the target may use this one.

    The attributes are those of :class:`Hello`. The target then sends Hello to the source.
    """

    proof: bytes
    source: int
    target: int
    strand: int = 0
    strands: int = 1
    incarnation: int = 0


class PipeRequest(Message, frozen=True):
    """The first message from a site that does not reach the scheduler: pipe this connection there.

    It names no address, since a site pipes to its own scheduler only. The attributes are those of
    :class:`Hello`.
    """

    proof: bytes
    source: int
    target: int
    incarnation: int = 0


class Piped(Message, frozen=True):
    """The answer to :class:`PipeRequest`: this connection leads to the scheduler from now on."""


class Piece(Message, frozen=True):
    """Bytes that pass through a pipe; the site that carries it does not interpret them."""

    data: bytes


class PieceTaken(Message, frozen=True):
    """A piece has left the pipe; another may enter."""


class Stamp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The data with which the receiver of a chunk measures the link that carried it.

    Attributes:
        sent_s: the start of its transmission over this link, by the sender's clock (the paper's
            t_s).
        offset_s: the scheduler's clock minus the sender's; None where unknown.
        backlogged: whether the sender's lane has sent without a pause since the chunk before.
    """

    sent_s: float
    offset_s: float | None
    backlogged: bool


class _OnItsWay(Message, frozen=True, kw_only=True):
    is_aux: bool = False
    stamp: Stamp | None = None


class ChunkMessage(_OnItsWay, frozen=True):
    """A chunk in flight; the payload is its elements.

    ``path`` names every site from the maker of the message to its consumer. A site in between
    relays it, whatever its own plan says. So a message in flight survives a change of plan.
    ``is_aux`` tells an auxiliary path from a primary one (the paper's IS_AUX and PATH, NetStorm,
    VII-B). Every hop writes a new ``stamp``.

    Attributes:
        exchange: the exchange's number, from 1. Where the model is served: the number of a worker's
            update, or of the update that it will compute on this part of the model.
        version: the version of the plan under which the exchange runs.
        chunk: the chunk's index.
        path: see above.
        terms: the code of the exchange's `exchange.terms.Terms`, the same at every member.
        epoch: how often the set of contributors had changed, as far as the sender knew.
    """

    exchange: int
    version: int
    chunk: int
    path: tuple[int, ...]
    terms: int
    epoch: int = 0


class PartialSum(ChunkMessage, frozen=True):
    """Up a tree: a chunk added up over the contributors below, and the sum of their weights."""

    weight: float = 1.0


class Result(ChunkMessage, frozen=True):
    """Down a tree: the root's result for a chunk."""


class Letter(ChunkMessage, frozen=True):
    """Between neighbours that gossip: a chunk of the sender's model.

    ``exchange`` is the letter's number, or the number of the letter that this one answers.
    ``version`` is 0, since letters need no plan. The path is one link.

    Attributes:
        weight: the chunk's weight, see :mod:`anabranch.exchange.letters`.
        steps: the steps of the model when the letter was made.
        is_answer: whether it answers the receiver's letter.
    """

    weight: float = 1.0
    steps: int = 0
    is_answer: bool = False


class BurstChunk(ChunkMessage, frozen=True):
    """Filler that measures the link which carries it, see :mod:`anabranch.site._bursts`.

    ``exchange`` and ``version`` are 0, and the path is one link.

    Attributes:
        is_answered: whether the receiver answers :class:`BurstHeard`.
        round_trip_s: in the last chunk, the round trip that the sender measured; else None.
    """

    is_answered: bool = False
    round_trip_s: float | None = None


class BurstHeard(Message, frozen=True):
    """To a neighbour: this chunk of its burst has arrived."""

    chunk: int


class LetterEnds(Message, frozen=True):
    """After chunks of a letter: its sender has dropped the rest, and will send no more."""

    number: int


class LetterTaken(Message, frozen=True):
    """To a neighbour: its letter, or its answer to this site's letter, has arrived completely."""

    number: int
    is_answer: bool = False


class StepsKnown(Message, frozen=True):
    """To a neighbour: how many steps each site has finished, as far as the sender knows."""

    steps: tuple[int, ...]


class TimeRequest(Message, frozen=True):
    """Asks for the time: from a child to its parent, or from a root to the scheduler.

    ``sent_s`` is the time of the request by the sender's clock. The reply repeats it.
    """

    sent_s: float


class TimeReply(Message, frozen=True):
    """The time by the scheduler's clock, as the sender of the reply estimates it.

    Attributes:
        sent_s: as in the request.
        received_s: the request's arrival, by the scheduler's clock.
        replied_s: this reply's departure, by the scheduler's clock.
        error_s: a bound on the error of the sender's estimate.
    """

    sent_s: float
    received_s: float
    replied_s: float
    error_s: float


class Credit(Message, frozen=True):
    """From a relay to the hop before it: one chunk of this route has been passed on."""

    path: tuple[int, ...]


class Refusal(Message, frozen=True):
    """To a peer: its message was refused.

    Attributes:
        error: the name of the error's class.
        detail: what was wrong.
        chunk: (exchange, version, chunk) if it was a chunk. A site that did send that chunk knows
            that its exchange cannot end.
    """

    error: str
    detail: str
    chunk: tuple[int, int, int] | None = None


# --- between a site and the scheduler ----------------------------------------------------------


class Join(Message, frozen=True):
    """A site asks to join the run, and gives the address of its listener.

    A site that takes no connections has no host. The scheduler tells its neighbours a special
    address instead, see :data:`anabranch.net.addresses.OUTBOUND_ONLY`.
    """

    proof: bytes
    name: str
    host: str
    port: int


class Resume(Message, frozen=True):
    """A site has lost its connection to the scheduler, and resumes its session over this one.

    Attributes:
        proof: see :mod:`anabranch.net.identity`.
        site: the site's index.
        heard: how many messages it has received since it joined.
        incarnation: its incarnation, see :class:`Welcome`.
        through: the site that pipes the connection, see :class:`PipeRequest`; None for none.
    """

    proof: bytes
    site: int
    heard: int
    incarnation: int = 0
    through: int | None = None


class Resumed(Message, frozen=True):
    """The scheduler's answer: the session is resumed; ``heard`` counts the messages received."""

    heard: int


class StatusRequest(Message, frozen=True):
    """The only message on its connection: asks for the state of the run.

    Attributes:
        proof: of the run's token, see :mod:`anabranch.net.identity`.
        stack_of: the name of a site, to ask for its Python stacks; empty for none.
    """

    proof: bytes
    stack_of: str = ""


class StatusReply(Message, frozen=True):
    """The scheduler's answer: a :class:`anabranch.log.status.Status` as JSON.

    Attributes:
        stack: the Python stacks, if wanted.
    """

    status: bytes
    stack: str = ""


class StackRequest(Message, frozen=True):
    """To a site: asks for the stacks of its Python threads.

    Attributes:
        asker: an opaque key, which the answer repeats.
    """

    asker: int


class Stack(Message, frozen=True):
    """A site's answer to :class:`StackRequest`."""

    asker: int
    text: str


class SiteAwaited(Message, frozen=True):
    """To sites that wait for another one: a message for their users.

    Attributes:
        site: the name of the awaited site.
        seconds: how long they have waited.
        at: describes the call that it has not made.
    """

    site: str
    seconds: float
    at: str


class Signature(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The terms of an exchange, :class:`anabranch.exchange.terms.Terms`, as fields."""

    op: int
    wire: int
    elements: int
    source: int | None = None
    receivers: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()


class Restarted(Message, frozen=True):
    """The scheduler's other answer to :class:`Resume`: it was restarted.

    Both sides forget the session, and begin a new one. The site answers with :class:`SiteSnapshot`.
    """


class OpenExchange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An exchange that a site has requested, and that has not ended there.

    Attributes:
        number, signature: as in :class:`ExchangeRequest`.
        place: its place among all calls of the channel, from 1.
        exchange: the number in its chunk messages; 0 if it is not granted yet.
        chunk_elements: as in :class:`Grant`.
        generation: as in :class:`Interrupt`.
        running: the numbers of the exchanges that repair it.
        followers: as in :class:`Grant`. If it is not granted yet: this site, if it follows.
    """

    number: int
    signature: Signature
    place: int
    exchange: int
    chunk_elements: int
    generation: int
    running: tuple[int, ...]
    followers: tuple[int, ...] = ()


class OpenGathering(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A gathering that has not ended at a site: fields of :class:`Gather`, and its place."""

    number: int
    place: int
    value: bytes
    admits: bool
    what: str = ""


class ChannelSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A site's state in the calls of a channel.

    Attributes:
        channel: the channel's number.
        version: the version of the site's plan.
        asked, gathered: the numbers of its latest exchange and gathering.
        exchanges, gatherings: those that have not ended here.
        answers: the scheduler's latest answers to those that have ended here, encoded.
    """

    channel: int
    version: int
    asked: int
    gathered: int
    exchanges: tuple[OpenExchange, ...]
    gatherings: tuple[OpenGathering, ...]
    answers: tuple[bytes, ...]


class SiteSnapshot(Message, frozen=True):
    """To a restarted scheduler: a site's state.

    Attributes:
        channels: its state in each channel.
        is_new: as in :class:`Welcome`.
        follows: whether it has not sent :class:`CaughtUp` yet, see :class:`Admitted`.
    """

    channels: tuple[ChannelSnapshot, ...]
    is_new: bool
    follows: bool = False


class Ack(Message, frozen=True):
    """Acknowledges so many messages since the site joined; the peer may drop its copies.

    Join, Resume, Resumed and Ack itself do not count.
    """

    count: int


class Patience(Message, frozen=True):
    """To all sites: how long a site may be disconnected from now on before it counts as lost."""

    seconds: float


class Welcome(Message, frozen=True):
    """To a site, once all sites that begin have joined: its index, the overlay, plan and addresses.

    A site that died may join again as another process, while the run continues. Its *incarnation*
    tells the processes apart: it counts the processes of the site that had joined before.

    Attributes:
        site: the receiver's index.
        overlay_toml: the overlay, as ``anabranch.overlay.dumps`` writes it.
        plan_json: the first plan, as ``anabranch.plan.dumps`` writes it.
        addresses: (host, port) of the receiver and of its neighbours, by index; no host where a
            site has not joined yet.
        work: the task, opaque to the network and the scheduler.
        incarnations: of the same sites, by index.
        updates: how many updates the receiver's earlier incarnations were permitted to compute.
        secret: the receiver's secret, see :mod:`anabranch.net.identity`.
        lane_secrets: the secrets of its lanes, by the neighbour's index.
        repairs: whether exchanges continue after the loss of a site or a link.
        retries: whether an interrupted exchange is reduced again as a whole, so that its result has
            the contributions of one set of sites.
        is_new: whether the group has begun already, and its members must admit the receiver.
    """

    site: int
    overlay_toml: str
    plan_json: str
    addresses: dict[int, tuple[str, int]]
    work: str
    incarnations: dict[int, int]
    updates: int = 0
    secret: bytes = b""
    lane_secrets: dict[int, bytes] = {}
    repairs: bool = False
    retries: bool = False
    is_new: bool = False


class Ready(Message, frozen=True):
    """A site is ready to begin.

    Attributes:
        buffer_elements: the most elements of its exchanges; 0 if unknown.
        samples: how many samples it trains on; 0 if it does not tell.
    """

    buffer_elements: int
    samples: int = 0


class Start(Message, frozen=True):
    """Every site is ready: the run's clock starts now, or started ``since_s`` seconds ago."""

    since_s: float = 0.0


class Model(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A digest of a site's parameters, before the optimiser's step that uses the latest mean.

    Attributes:
        step: the number of steps since this site or others joined last. Only models of the same
            step are compared.
        checksum: 64 bits of a sample of the parameters.
        is_first: whether no step has used a mean yet; rounding then explains no difference.
    """

    step: int
    checksum: int
    is_first: bool


class ExchangeRequest(Message, frozen=True):
    """A site asks under which plan version an exchange runs (NetStorm's TRP, section VII-A).

    Attributes:
        channel: the members' channel, as numbered by :class:`Subgrouped`; 0 for all members.
        number: the exchange's number on the channel, from 1; all members ask in the same order.
        signature: the exchange's terms.
        calls: whether to send :class:`RequestAwaited` to members that have not asked yet, if this
            site is the first to ask.
        attempt: how often this site has asked for it ahead, and then made another call. It tells
            apart answers to earlier attempts, which may still be in flight.
        is_leased: whether this site has begun it already, under a :class:`Lease`.
    """

    channel: int
    number: int
    signature: Signature
    calls: bool = False
    attempt: int = 0
    is_leased: bool = False


class AskAhead(Message, frozen=True):
    """A site expects this exchange as its next call, and asks for its plan ahead of the call.

    It commits to nothing. If the call comes, the site begins with the grant that it has, and sends
    an :class:`ExchangeRequest` of the same attempt. Any other call of the site withdraws this.

    Attributes:
        channel, number, signature, attempt: as in :class:`ExchangeRequest`.
    """

    channel: int
    number: int
    signature: Signature
    attempt: int = 0


class Unfit(Message, frozen=True):
    """A site cannot contribute to an exchange that it has requested.

    The exchange then ends without a result at every member, and each gets the reason.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        why: what is wrong with its contribution.
    """

    channel: int
    number: int
    why: str


class Withdrawn(Message, frozen=True):
    """To a member: an interrupted exchange is void, and so is its grant.

    No member has begun it: those that had asked for it ahead have made other calls. Another
    exchange may get its number.
    """

    channel: int
    number: int


class ModelDigest(Message, frozen=True):
    """A site's model at an exchange for which the scheduler compares the members' models.

    It precedes the site's request for that exchange.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        model: the digest.
    """

    channel: int
    number: int
    model: Model


class ModelsDiffer(Message, frozen=True):
    """To a member: the members' models have become different; ``reason`` names the sites."""

    reason: str


class RequestAwaited(Message, frozen=True):
    """To a member: another member has requested an exchange, and waits for this one's request."""

    channel: int
    number: int


class Grant(Message, frozen=True):
    """The answer to a request: begin the exchange.

    Attributes:
        channel, number: as in the request.
        exchange: the number in its chunk messages; rising over all channels.
        version: the version of its plan.
        plan_json: that plan; empty if the site has it.
        chunk_elements: the most elements of a chunk.
        trees: the trees of the first chunks, in order, where the scheduler dispatches chunks during
            the exchange; None where all are dealt by share at its beginning.
        settles: whether the result is valid only once :class:`Settled` confirms it.
        is_interrupted: whether it begins with a :class:`Repair`, since it was interrupted before
            this site asked for it.
        followers: members that contribute nothing to it, and get its result.
        why_last: why this is the channel's last exchange, where no :class:`Settled` will tell; else
            empty.
        attempt: as in the request.
    """

    channel: int
    number: int
    exchange: int
    version: int
    plan_json: str
    chunk_elements: int
    trees: tuple[int, ...] | None = None
    settles: bool = False
    is_interrupted: bool = False
    followers: tuple[int, ...] = ()
    why_last: str = ""
    attempt: int = 0


class LeasedSize(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How exchanges of one size of buffer go under a lease; the fields are those of a grant."""

    elements: int
    version: int
    plan_json: str
    chunk_elements: int
    trees: tuple[int, ...] | None


class Lease(Message, frozen=True):
    """A site may begin these exchanges without a grant, if their buffers have one of these sizes.

    Attributes:
        channel: as in :class:`ExchangeRequest`.
        first, count: the exchanges' numbers on the channel.
        first_exchange: the number in the chunk messages of the first one; the others follow.
        settles: as in :class:`Grant`.
        sizes: of buffers to which all members contribute.
    """

    channel: int
    first: int
    count: int
    first_exchange: int
    settles: bool
    sizes: tuple[LeasedSize, ...]


class LeaseOver(Message, frozen=True):
    """Begin no further exchange of this channel without a grant, and answer :class:`LeaseEnded`.

    Attributes:
        channel: as in :class:`ExchangeRequest`.
        is_void: whether a site or link is lost, so that data of leased exchanges that have not
            begun here is void.
    """

    channel: int
    is_void: bool


class LeaseEnded(Message, frozen=True):
    """The answer to :class:`LeaseOver`: the site has asked for all exchanges that it has begun."""

    channel: int


class ExchangeFailed(Message, frozen=True):
    """This exchange ends without a result; ``reason`` names the sites that disagree or have left.

    ``exchange`` is 0 if it had not begun.
    """

    channel: int
    number: int
    exchange: int
    reason: str


class Interrupt(Message, frozen=True):
    """A site or link is lost: stop this exchange, and answer :class:`Holding`.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        generation: how many times it has been interrupted.
        exchanges: the numbers in its chunk messages; later messages with them are void.
    """

    channel: int
    number: int
    generation: int
    exchanges: tuple[int, ...]


class Holding(Message, frozen=True):
    """A member reports which elements of an exchange's result it holds.

    It answers :class:`Interrupt`, and is sent also when the member holds the whole result. All
    other elements are the member's own contribution, unchanged.

    Attributes:
        channel, number, generation: as in :class:`Interrupt`; generation 0 before any.
        held: runs of elements ``[start, stop)``, rising.
        ended: the end of the exchange here, which counts once the result is settled; the member
            sends no :class:`ExchangeEnded` then. Void if a loss interrupts the exchange. None where
            the program gets the result with the settlement.
    """

    channel: int
    number: int
    generation: int
    held: tuple[tuple[int, int], ...]
    ended: ExchangeEnded | None = None


class RepairPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An exchange of some elements, as a part of the repair of an interrupted one.

    Attributes:
        exchange: the number in its chunk messages.
        source: the member that holds the elements' result, and spreads it; None where they are
            reduced again.
        receivers: the members that get the result.
        ranges: runs of elements ``[start, stop)``, rising.
        plan_json: its plan; empty for the plan of the repair.
    """

    exchange: int
    source: int | None
    receivers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    plan_json: str = ""


class Repair(Message, frozen=True):
    """To every member: complete an interrupted exchange by the exchanges named.

    Attributes:
        channel, number, generation: as in :class:`Interrupt`.
        version: the version of the plan under which they run.
        plan_json: that plan; empty if the site has it.
        parts: the exchanges; they run concurrently.
    """

    channel: int
    number: int
    generation: int
    version: int
    plan_json: str
    parts: tuple[RepairPart, ...]


class Contribution(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sites whose contributions are in elements ``[start, stop)`` of a result."""

    start: int
    stop: int
    sites: tuple[int, ...]


class Settled(Message, frozen=True):
    """Every member holds the result of an exchange.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        members: the channel's members now.
        contributions: the contributors, by elements; together they cover the buffer.
        why_last: why this is the channel's last exchange; empty where more may follow.
    """

    channel: int
    number: int
    members: tuple[int, ...]
    contributions: tuple[Contribution, ...]
    why_last: str = ""


class SubgroupRequest(Message, frozen=True):
    """A site asks for a channel of these members, in rising order; it is one of them.

    Args:
        members: see above.
        name: tells apart subgroups with the same members.
        without: members that were admitted after this place of the site's program, which follows.
    """

    members: tuple[int, ...]
    name: str = ""
    without: tuple[int, ...] = ()


class Subgrouped(Message, frozen=True):
    """The answer: the channel of these members, and its first plan."""

    channel: int
    members: tuple[int, ...]
    plan_json: str
    name: str = ""


class Gather(Message, frozen=True):
    """A site's small value for a gathering: every member of a channel gets the values of all.

    Attributes:
        channel: as in :class:`ExchangeRequest`.
        number: the gathering's number on the channel, from 1; 0 from a site that waits to join.
        value: the value, encoded by the caller.
        admits: whether this gathering admits the sites that wait to join, once all members have
            sent theirs. The answer is then :class:`Admitted`.
        heard: the site has received the answers to all gatherings up to this number.
        what: the purpose, for the error message if another member makes a different call.
    """

    channel: int
    number: int
    value: bytes
    admits: bool = False
    heard: int = 0
    what: str = ""


class Gathered(Message, frozen=True):
    """The answer to :class:`Gather`: the values of all members, in the order of their indices.

    Attributes:
        channel, number: as in :class:`Gather`.
        values: the members' values.
        members: the members.
        heard: all members have received the answers up to this number, and may forget them.
    """

    channel: int
    number: int
    values: tuple[bytes, ...]
    members: tuple[int, ...] = ()
    heard: int = 0


class Admitted(Message, frozen=True):
    """To all members: more sites are members from here on.

    Attributes:
        number: the gathering's number, see :class:`Gather`.
        exchanges: how many exchanges all sites together have made.
        members: the members from now on.
        newcomers: the members without the state of training.
        holders: the members with it.
        plan_json: the plan from now on; empty if it is unchanged.
        follows: whether newcomers *follow*, from the hand-over of the state until
            :class:`CaughtUp`. A follower contributes nothing and gets all results; the others do
            not wait for it.
    """

    number: int
    exchanges: int
    members: tuple[int, ...]
    newcomers: tuple[int, ...]
    holders: tuple[int, ...]
    plan_json: str
    follows: bool = False


class CallMade(Message, frozen=True):
    """To a follower: another member has made a call; make it too.

    Attributes:
        number: the number of the exchange, or of the gathering that admits sites.
        place: its place among all calls, from 1.
        signature: the exchange's terms; None for a gathering.
    """

    number: int
    place: int
    signature: Signature | None


class CaughtUp(Message, frozen=True):
    """A follower contributes like any other member from now on, and the others wait for it.

    Attributes:
        kept: how many calls of the others its program has yet to make.
        why: the reason if that is not 0.
    """

    kept: int
    why: str


class GatherFailed(Message, frozen=True):
    """A gathering has failed; ``reason`` names the members that give no value."""

    channel: int
    number: int
    reason: str


class Dispatched(Message, frozen=True):
    """The trees that carry an exchange's next chunks, in order."""

    exchange: int
    trees: tuple[int, ...]


class Progress(Message, frozen=True):
    """The number of results that a site holds, by tree, while chunks are being dispatched."""

    exchange: int
    finished: tuple[int, ...]


class Auxiliary(Message, frozen=True):
    """A plan's auxiliary paths from now on; only the site at the start of a path uses it."""

    version: int
    paths: tuple[tuple[int, ...], ...]


class LinkRate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A site's measurement of the link from ``source`` to itself, from so many chunks."""

    source: int
    rate_bps: float
    latency_s: float | None
    chunks: int


class Measured(Message, frozen=True):
    """The latest measurements of a site's links, as far as they are newer than those it sent."""

    links: tuple[LinkRate, ...]


class BurstsOver(Message, frozen=True):
    """From a site: it awaits no more bursts, and has told what they show."""


class ProceedRequest(Message, frozen=True):
    """From a worker: it has sent an update to the servers (R²SP's Request-to-Proceed).

    Attributes:
        update: the update's number, from 1.
        samples: the number of samples in its batch.
        compute_s: how long the worker computed.
        loss: the batch's loss; None if there is none.
    """

    update: int
    samples: int
    compute_s: float
    loss: float | None = None


class Proceed(Message, frozen=True):
    """To a worker: compute this update (R²SP's Permission-to-Proceed).

    Attributes:
        update: the update's number, from 1.
        samples: the number of samples in its batch.
        pulls: whether servers send a model for it; otherwise the worker uses the model it has.
        client: the client that it computes for, where a worker stands for many.
        looks: whether the worker evaluates that model.
    """

    update: int
    samples: int
    pulls: bool
    client: int | None = None
    looks: bool = False


class Abandon(Message, frozen=True):
    """To a worker: its updates up to this one are too late.

    It stops computing them and pushes none, but still sends :class:`ProceedRequest` after each.

    Attributes:
        update: the last such update.
        model_comes: whether servers send the models for them nevertheless.
    """

    update: int
    model_comes: bool = True


class UpdateReceived(Message, frozen=True):
    """From a server: its part of a worker's update has arrived completely.

    Attributes:
        worker, update: the update.
        epoch: the epoch of the sum that contained it, where updates are added up on the way.
        squared_norm: of this part of the update, or of the mean in which it arrived; None where no
            rule needs it.
    """

    worker: int
    update: int
    epoch: int = 0
    squared_norm: float | None = None


class Advance(Message, frozen=True):
    """To the servers: take a step, then send the model.

    Attributes:
        apply: updates that become part of the model, as (worker, update), in this order.
        discard: updates that never will.
        pulls: the workers that get the model after the step, as (worker, update to compute).
        factors: a factor for the step of each applied update; empty for 1.
        share: the length of the step towards the mean of its updates; None for their share of all
            workers' weights.
        deprecated: workers whose update under way is abandoned, because its model is too old.
        uncounted: workers whose last model is removed from the mean of all workers' models.
    """

    apply: tuple[tuple[int, int], ...]
    discard: tuple[tuple[int, int], ...]
    pulls: tuple[tuple[int, int], ...]
    factors: tuple[float, ...] = ()
    share: float | None = None
    deprecated: tuple[int, ...] = ()
    uncounted: tuple[int, ...] = ()


class Agreed(Message, frozen=True):
    """From a server: how far a step's updates agree with their mean, in its part of the model.

    Attributes:
        updates: the step's updates, as (worker, update).
        dots: the scalar product of each with the mean.
        squared_norms: the squared norm of each.
        squared_norm: the squared norm of the mean.
    """

    updates: tuple[tuple[int, int], ...]
    dots: tuple[float, ...]
    squared_norms: tuple[float, ...]
    squared_norm: float


class EpochChanged(Message, frozen=True):
    """Where updates are added up on the way: the contributors have changed.

    Attributes:
        epoch: how often they have changed.
        workers: all contributors from now on.
        round: the update of every worker that is under way. A worker that has pushed it pushes it
            again.
        version: the version of the plan of these updates.
    """

    epoch: int
    workers: tuple[int, ...]
    round: int
    version: int


class Reform(Message, frozen=True):
    """To all: the groups of a forest are formed anew. Answered by :class:`Reformed`.

    All data of a group that is not in the new plan is void.

    Attributes:
        plan_json: the plan with the new groups; groups that stay keep their plans.
        updates: the next update of each group's workers.
    """

    plan_json: str
    updates: tuple[int, ...]


class Reformed(Message, frozen=True):
    """From a site: it has a plan's groups, and no further data of replaced groups arrives there."""

    version: int


class NoMoreRounds(Message, frozen=True):
    """The answer to a request for an exchange after the channel's last one.

    Attributes:
        number: the number of the requested exchange on its channel.
        reason: why the channel has ended.
        channel: see :class:`ExchangeRequest`.
    """

    number: int
    reason: str = ""
    channel: int = 0


class Stopping(Message, frozen=True):
    """To all sites that gossip: the run ends; finish the present step, and make no other."""


class PaceOver(Message, frozen=True):
    """To all, where the model is served: the scheduler permits no further updates.

    Attributes:
        receivers: the workers that get the final model.
    """

    receivers: tuple[int, ...] = ()


class ExchangeEnded(Message, frozen=True):
    """A site holds the result of an exchange.

    Attributes:
        channel, number, version: as in :class:`Grant`.
        seconds: how long the exchange took here.
        checksum: of the site's model or buffer; None if it was not computed.
        waited_for: the neighbour that sent the chunk that was finished last; None for no neighbour.
        tree: that chunk's tree.
        round_trip_s: the least time in which the site's latest requests were granted.
        every_s: the mean time between the site's latest calls of exchanges; None if not known.
    """

    channel: int
    number: int
    version: int
    seconds: float
    checksum: int | None
    waited_for: int | None = None
    tree: int | None = None
    round_trip_s: float = 0.0
    every_s: float | None = None


class Report(Message, frozen=True):
    """Events for the log, each an encoded record, opaque to the scheduler."""

    events: tuple[bytes, ...]


class Leave(Message, frozen=True):
    """A site has finished its work."""


class Failed(Message, frozen=True):
    """A site cannot continue, by no fault of another site; ``reason`` tells why."""

    reason: str


class Shutdown(Message, frozen=True):
    """All sites have finished; the site may close."""


class Departed(Message, frozen=True):
    """To a site that has left, instead of :class:`Shutdown`: the others continue without it."""


class LinkCut(Message, frozen=True):
    """From the scheduler: the links to and from this neighbour carry no data any more."""

    neighbour: int


class SiteGone(Message, frozen=True):
    """From the scheduler: this site is lost, and the run continues without it.

    ``reason`` tells how it was lost.
    """

    site: int
    reason: str


class LinkProbe(Message, frozen=True):
    """From the scheduler: test whether this neighbour answers; reply with :class:`LinkProbed`."""

    neighbour: int


class LinkProbed(Message, frozen=True):
    """Whether a neighbour answered, on a new connection."""

    neighbour: int
    answers: bool


class CutOff(Message, frozen=True):
    """From a site: its lane to or from a neighbour has ended; the neighbour may be dead.

    ``incarnation`` is the neighbour's, see :class:`Welcome`.
    """

    neighbour: int
    reason: str
    incarnation: int = 0


class Silent(Message, frozen=True):
    """From a site: a neighbour is silent for unusually long on a lane, or is heard again.

    If both ends report it, plans avoid the links between them, unless that isolates a site.

    Attributes:
        neighbour: the neighbour.
        incarnation: the neighbour's incarnation, see :class:`Welcome`.
        is_silent: True while it is silent, False once it is heard again.
    """

    neighbour: int
    incarnation: int
    is_silent: bool


class Rejoined(Message, frozen=True):
    """To the neighbours of a site that died: the address of its new process.

    Each neighbour answers :class:`RejoinAck`; the site begins when all have.
    """

    site: int
    incarnation: int
    host: str
    port: int


class RejoinAck(Message, frozen=True):
    """The answer to :class:`Rejoined`: this site's lanes lead to the new process from now on."""

    site: int
    incarnation: int


class Abort(Message, frozen=True):
    """From the scheduler: the run has ended early; ``reason`` names the site or error.

    From a site: its data plane has failed; the scheduler decides which site caused it.

    Attributes:
        reason: see above.
        goes_on: whether the run continues without the receiver, which may join again.
    """

    reason: str
    goes_on: bool = False


AnyMessage = (
    Hello
    | Offer
    | PipeRequest
    | Piped
    | Piece
    | PieceTaken
    | PartialSum
    | Result
    | Letter
    | BurstChunk
    | BurstHeard
    | LetterEnds
    | LetterTaken
    | StepsKnown
    | TimeRequest
    | TimeReply
    | Credit
    | Refusal
    | Join
    | Resume
    | Resumed
    | StatusRequest
    | StatusReply
    | Restarted
    | SiteSnapshot
    | Ack
    | Patience
    | StackRequest
    | Stack
    | SiteAwaited
    | Welcome
    | Ready
    | Start
    | ExchangeRequest
    | AskAhead
    | ModelsDiffer
    | Unfit
    | Withdrawn
    | ModelDigest
    | RequestAwaited
    | Grant
    | Lease
    | LeaseOver
    | LeaseEnded
    | ExchangeFailed
    | Interrupt
    | Holding
    | Repair
    | Settled
    | SubgroupRequest
    | Subgrouped
    | Gather
    | Gathered
    | Admitted
    | CallMade
    | CaughtUp
    | GatherFailed
    | Dispatched
    | Progress
    | Auxiliary
    | Measured
    | BurstsOver
    | ProceedRequest
    | Proceed
    | Abandon
    | UpdateReceived
    | Advance
    | EpochChanged
    | Agreed
    | Reform
    | Reformed
    | NoMoreRounds
    | Stopping
    | PaceOver
    | ExchangeEnded
    | Report
    | Leave
    | Failed
    | Shutdown
    | Departed
    | CutOff
    | Silent
    | LinkCut
    | SiteGone
    | LinkProbe
    | LinkProbed
    | Rejoined
    | RejoinAck
    | Abort
)

# Encode a message, and decode bytes; decoding raises ``NO_MESSAGE``. They are the library's own
# methods, without a function around them, because every chunk passes through here.
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder[AnyMessage](AnyMessage).decode
NO_MESSAGE = msgspec.DecodeError, ValueError  # the second one e.g. for invalid UTF-8
