"""Everything that sites and the scheduler say to each other, typed.

A message travels as a msgpack array ``[type, field, ...]``; bulk data follows it as a raw payload
(see :mod:`anabranch.net.frames`). Sites are named by their index in the overlay.

The file is long, and one: it holds declarations and no code. The decoder has to know every type, so
that each client would load each file of a room of messages, and what a client loads is bounded
(`tests/group/test_client_modules.py`).
"""

from __future__ import annotations

import msgspec

WIRE_VERSION = 30
MOST_GATHERED_BYTES = 1 << 20
"""The largest value that a site may have gathered (:class:`Gather`)."""
MOST_NAME_CHARACTERS = 200  # of a subgroup, and of what a gathering is for


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of every message."""


# --- between sites ---------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First on a connection of a lane: its source, and the target that it expects.

    Attributes:
        proof: see :mod:`anabranch.net.identity`.
        source: the site that connects.
        target: the site that it expects at the other end.
        strand: the connection's place among those of the same lane, from 0.
        strands: how many connections the lane has.
        incarnation: which process of the source speaks, see :class:`Welcome`.
    """

    proof: bytes
    source: int
    target: int
    strand: int = 0
    strands: int = 1
    incarnation: int = 0


class Offer(Message, frozen=True):
    """First on a connection from a site that takes none: the target may send to it on this one.

    The attributes are those of :class:`Hello`, which the target then says to the source.
    """

    proof: bytes
    source: int
    target: int
    strand: int = 0
    strands: int = 1
    incarnation: int = 0


class PipeRequest(Message, frozen=True):
    """First on a connection from a site that does not reach the scheduler: pipe it there.

    It names no address: a site pipes to its own scheduler only. The other attributes are those of
    :class:`Hello`.
    """

    proof: bytes
    source: int
    target: int
    incarnation: int = 0


class Piped(Message, frozen=True):
    """The answer: the scheduler's listener is at the other end of this connection from now on."""


class Piece(Message, frozen=True):
    """Bytes that go through a pipe, which the sites at its ends do not read."""

    data: bytes


class PieceTaken(Message, frozen=True):
    """A piece has left the pipe; another may enter."""


class Stamp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the receiver of a chunk must know to measure the link it came over.

    Attributes:
        sent_s: when its transmission over this link began, by the sender's clock (the paper's t_s).
        offset_s: what the sender adds to its clock to have the scheduler's; None where unknown.
        backlogged: whether the sender's lane had sent without a pause since the chunk before.
    """

    sent_s: float
    offset_s: float | None
    backlogged: bool


class _OnItsWay(Message, frozen=True, kw_only=True):
    is_aux: bool = False
    stamp: Stamp | None = None


class ChunkMessage(_OnItsWay, frozen=True):
    """A chunk on its way; the payload is its elements.

    ``path`` holds every site from the one that made the message to the one that consumes it. A
    site that is not the last on it relays, whatever its own plan says, so a message in flight
    survives a change of plan. ``is_aux`` tells an auxiliary path from a primary one (the paper's
    IS_AUX and PATH, NetStorm, VII-B). Every hop writes a ``stamp`` of its own.

    Attributes:
        exchange: of which exchange, from 1. Where the model is served, which update of a worker,
            or which update it will compute on this part of the model, from 1.
        version: of the plan that the exchange runs under.
        chunk: its index.
        path: see above.
        terms: what is exchanged and in which format, as `exchange.terms.Terms` codes
            it: the same at every member.
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
    """Down a tree: what the root has made of a chunk."""


class Letter(ChunkMessage, frozen=True):
    """Between neighbours that gossip: a chunk of the sender's model.

    ``exchange`` counts the letters from one to the other, or is that of the letter that this one
    answers; ``version`` is 0, as no plan is needed, and the path is one link.

    Attributes:
        weight: what the chunk weighs, see :mod:`anabranch.exchange.letters`.
        steps: that the model had made.
        is_answer: whether it answers the receiver's letter.
    """

    weight: float = 1.0
    steps: int = 0
    is_answer: bool = False


class LetterEnds(Message, frozen=True):
    """After a letter's chunks: no other comes, as its sender has taken the rest back."""

    number: int


class LetterTaken(Message, frozen=True):
    """To a neighbour: all of its letter, or of its answer to one of this site's, has come."""

    number: int
    is_answer: bool = False


class StepsKnown(Message, frozen=True):
    """To a neighbour: how many steps each site has finished, as far as the sender knows."""

    steps: tuple[int, ...]


class TimeRequest(Message, frozen=True):
    """What time is it? From a child to its parent, or from a root to the scheduler.

    ``sent_s`` is the asking side's clock, and comes back as it is.
    """

    sent_s: float


class TimeReply(Message, frozen=True):
    """The time by the scheduler's clock, as far as the one who answers knows it.

    Attributes:
        sent_s: as in the request.
        received_s: when the request came, by the scheduler's clock.
        replied_s: when this reply left, by the scheduler's clock.
        error_s: how far off the other's idea of that clock may be.
    """

    sent_s: float
    received_s: float
    replied_s: float
    error_s: float


class Credit(Message, frozen=True):
    """From a relay to the hop before it: one chunk of this route has been passed on."""

    path: tuple[int, ...]


class Refusal(Message, frozen=True):
    """To a peer: your message was refused; ``error`` names the kind, ``detail`` what was wrong.

    ``chunk`` is its (exchange, version, chunk) if it was a chunk: a site that really sent that one
    knows that its exchange cannot end.
    """

    error: str
    detail: str
    chunk: tuple[int, int, int] | None = None


# --- between a site and the scheduler ----------------------------------------------------------


class Join(Message, frozen=True):
    """A site asks to take part, and says where its peers reach it.

    A site that takes no connections has no host; the scheduler tells its neighbours an address that
    says so, see :data:`anabranch.net.addresses.OUTBOUND_ONLY`.
    """

    proof: bytes
    name: str
    host: str
    port: int


class Resume(Message, frozen=True):
    """A site that takes part has lost its connection, and goes on over this one.

    ``heard`` is how many messages it has heard since it joined; ``incarnation`` says which process
    of the site it is, see :class:`Welcome`; ``through`` is the site that pipes the connection, see
    :class:`PipeRequest`, and None for none.
    """

    proof: bytes
    site: int
    heard: int
    incarnation: int = 0
    through: int | None = None


class Resumed(Message, frozen=True):
    """The scheduler's answer: go on; ``heard`` is how many messages of yours have come."""

    heard: int


class StatusRequest(Message, frozen=True):
    """First on a connection, and last: how does the run stand? Proven by the run's token.

    Attributes:
        stack_of: the name of a site whose Python stacks are asked for; empty for none.
    """

    proof: bytes
    stack_of: str = ""


class StatusReply(Message, frozen=True):
    """The scheduler's answer: a :class:`anabranch.log.status.Status` as JSON.

    Attributes:
        stack: the Python stacks that were asked for.
    """

    status: bytes
    stack: str = ""


class StackRequest(Message, frozen=True):
    """Scheduler to site: where are your Python threads?

    Attributes:
        asker: what the answer repeats.
    """

    asker: int


class Stack(Message, frozen=True):
    """A site's answer to :class:`StackRequest`."""

    asker: int
    text: str


class Lagging(Message, frozen=True):
    """To sites that wait for another one: what to tell their users.

    Attributes:
        site: the name of the one that is awaited.
        seconds: for how long.
        at: the call that it has not made, in words.
    """

    site: str
    seconds: float
    at: str


class Signature(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a site would exchange: :class:`anabranch.exchange.terms.Terms`, made readable."""

    op: int
    wire: int
    elements: int
    source: int | None = None
    receivers: tuple[int, ...] = ()


class Restarted(Message, frozen=True):
    """The scheduler's other answer to :class:`Resume`: it was restarted, and has to be told all.

    What was said before counts no more, on either side; the site answers :class:`Standing`.
    """


class OpenExchange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An exchange that a site has asked for, and whose end it has not heard.

    Attributes:
        number, signature: as in :class:`ExchangeRequest`.
        place: among all calls of the channel, from 1.
        exchange: the number that its chunks carry; 0 where it is not granted.
        chunk_elements: as in :class:`Grant`.
        generation: as in :class:`Interrupt`.
        running: the numbers of the exchanges that would complete it.
        followers: as in :class:`Grant`; where it is not granted, the site that says it, if it
            follows.
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
    """A gathering that a site takes part in, as in :class:`Gather`; and its place, as above."""

    number: int
    place: int
    value: bytes
    admits: bool
    what: str = ""


class ChannelStanding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a site is with the calls of a channel.

    Attributes:
        channel: which.
        version: of the plan that the site has.
        asked, gathered: its latest exchange and gathering.
        exchanges, gatherings: those that are open.
        answers: the latest that have ended here, as the scheduler said it, encoded.
    """

    channel: int
    version: int
    asked: int
    gathered: int
    exchanges: tuple[OpenExchange, ...]
    gatherings: tuple[OpenGathering, ...]
    answers: tuple[bytes, ...]


class Standing(Message, frozen=True):
    """To a scheduler that was restarted: how far a site is.

    Attributes:
        is_new: as in :class:`Welcome`.
        follows: whether it has not said :class:`InStep` yet, see :class:`Admitted`.
    """

    channels: tuple[ChannelStanding, ...]
    is_new: bool
    follows: bool = False


class Ack(Message, frozen=True):
    """Either side has heard so many messages since the site joined; they may be forgotten.

    (Join, Resume, Resumed and this one do not count.)
    """

    count: int


class Patience(Message, frozen=True):
    """To all: how long a broken connection may take to come back, from now on."""

    seconds: float


class Welcome(Message, frozen=True):
    """All sites that begin have joined: who you are, the overlay, the plan, where the others are.

    A site that died may join a run that goes on without it, as another process. Those are told
    apart by their *incarnation*: how many processes of the site had joined before.

    Attributes:
        site: the receiver's index.
        overlay_toml: the overlay, as ``anabranch.overlay.dumps`` writes it.
        plan_json: the first plan, as ``anabranch.plan.dumps`` writes it.
        addresses: (host, port) of every site, by index; no host where a site has not joined yet.
        work: what to do, opaque to the network and the scheduler.
        incarnations: of every site, by index; all 0 where left out.
        updates: how many updates the receiver's earlier incarnations were let compute.
        secret: the receiver's own, see :mod:`anabranch.net.identity`.
        lane_secrets: of its lanes to other sites, by their index; empty where no link leads.
        repairs: whether exchanges go on without a site or a link that is lost.
        retries: whether all of an exchange that has lost something is reduced again, so that its
            result has the contributions of one set of sites.
        is_new: whether the group goes on already, and its members have to let the receiver in.
    """

    site: int
    overlay_toml: str
    plan_json: str
    addresses: tuple[tuple[str, int], ...]
    work: str
    incarnations: tuple[int, ...] = ()
    updates: int = 0
    secret: bytes = b""
    lane_secrets: tuple[bytes, ...] = ()
    repairs: bool = False
    retries: bool = False
    is_new: bool = False


class Ready(Message, frozen=True):
    """A site can begin; its exchanges have at most this many elements, 0 if it cannot say.

    It holds so many ``samples`` of the data to train on, 0 if it does not say.
    """

    buffer_elements: int
    samples: int = 0


class Start(Message, frozen=True):
    """Every site is ready: the run's clock starts now, or started so long ago."""

    since_s: float = 0.0


class Model(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A site's parameters, before the optimiser's step that the latest mean was for.

    Attributes:
        step: how many steps this one makes since the site joined, or others did; only models of the
            same step are compared.
        checksum: 64 bits of a sample of the parameters.
        is_first: whether no step has used a mean before, so that no rounding explains a difference.
    """

    step: int
    checksum: int
    is_first: bool


class ExchangeRequest(Message, frozen=True):
    """A site asks under which plan version an exchange runs (NetStorm's TRP, section VII-A).

    Attributes:
        channel: the members whose exchange it is, as :class:`Subgrouped` numbers them; 0 for all.
        number: counts the channel's exchanges from 1, in the order in which every member asks.
        signature: what it would exchange.
        calls: whether members that have not asked for it yet are to hear of it by
            :class:`Awaited`, where this site is the first that wants it.
        attempt: how often this site has asked for it ahead and then made another call. An answer
            to an earlier attempt may be on its way, and must not be taken for one to this.
    """

    channel: int
    number: int
    signature: Signature
    calls: bool = False
    attempt: int = 0


class AskAhead(Message, frozen=True):
    """A site expects that its next call is this exchange, and asks for its plan ahead of it.

    It binds nothing. If the call comes, the site begins with the grant it has, and says so by an
    :class:`ExchangeRequest` of the same attempt. Any other call of the site takes this back.

    Attributes:
        channel, number, signature, attempt: as in :class:`ExchangeRequest`.
    """

    channel: int
    number: int
    signature: Signature
    attempt: int = 0


class Unfit(Message, frozen=True):
    """A site has nothing to contribute to an exchange that others could use.

    The exchange then ends without a result at every member, and the others hear why. The site has
    asked for it before.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        why: what is wrong with what it would contribute.
    """

    channel: int
    number: int
    why: str


class Withdrawn(Message, frozen=True):
    """To a member: what it was told of an interrupted exchange counts no more.

    No member has begun it: those that had asked for it ahead have made other calls. Another
    exchange of its number may follow.
    """

    channel: int
    number: int


class ModelTold(Message, frozen=True):
    """A site's model at its call for an exchange, where it is time to compare the members'.

    It comes before the site's request for that exchange.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        model: the site's.
    """

    channel: int
    number: int
    model: Model


class ModelsDiffer(Message, frozen=True):
    """To a member: members' models were alike and are no more; ``reason`` names the sites."""

    reason: str


class Awaited(Message, frozen=True):
    """To a member: another one has asked for an exchange that this one has not asked for yet."""

    channel: int
    number: int


class Grant(Message, frozen=True):
    """The answer: begin.

    Attributes:
        channel, number: as in the request.
        exchange: the number that its chunks carry, rising over all channels.
        version: of the plan that it runs under.
        plan_json: that plan; empty if the site has it.
        chunk_elements: the most elements of a chunk.
        trees: of the first chunks, in order, where the scheduler dispatches chunks while the
            exchange goes on; None where all are dealt beforehand, by share.
        settles: whether the result counts once :class:`Settled` says so, and not before.
        is_interrupted: whether it begins with a :class:`Repair`, since it was interrupted before
            this site asked for it.
        followers: members that contribute nothing to it, and get its result.
        why_last: why no other exchange of the channel is held, where no :class:`Settled` will say
            so; empty where one may be.
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


class ExchangeFailed(Message, frozen=True):
    """This exchange ends without a result; ``reason`` names who disagrees, or who has left.

    ``exchange`` is 0 where it had not begun.
    """

    channel: int
    number: int
    exchange: int
    reason: str


class Interrupt(Message, frozen=True):
    """Something is lost: stop this exchange, and answer :class:`Holding`.

    Attributes:
        channel, number: which, as in :class:`ExchangeRequest`.
        generation: how many times it has been interrupted.
        exchanges: the numbers that its chunks carry; what comes of them from now on is void.
    """

    channel: int
    number: int
    generation: int
    exchanges: tuple[int, ...]


class Holding(Message, frozen=True):
    """A member says which elements of an exchange's result it holds.

    The answer to :class:`Interrupt`; and said once all of the result is there. The others are its
    own contribution, untouched.

    Attributes:
        channel, number, generation: as in :class:`Interrupt`; generation 0 before any.
        held: runs of elements ``[start, stop)``, rising.
    """

    channel: int
    number: int
    generation: int
    held: tuple[tuple[int, int], ...]


class RepairPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An exchange of some elements, which completes another one that was interrupted.

    Attributes:
        exchange: the number that its chunks carry.
        source: the member that holds their result, and spreads it; None where they are reduced.
        receivers: the members that get it.
        ranges: runs of elements ``[start, stop)``, rising.
        plan_json: a plan of its own; empty for the repair's.
    """

    exchange: int
    source: int | None
    receivers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    plan_json: str = ""


class Repair(Message, frozen=True):
    """To every member: complete an exchange that was interrupted, by these.

    Attributes:
        channel, number, generation: as in :class:`Interrupt`.
        version: of the plan that they run under.
        plan_json: that plan; empty if the site has it.
        parts: at once.
    """

    channel: int
    number: int
    generation: int
    version: int
    plan_json: str
    parts: tuple[RepairPart, ...]


class Contribution(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Whose contributions are in elements ``[start, stop)`` of a result."""

    start: int
    stop: int
    sites: tuple[int, ...]


class Settled(Message, frozen=True):
    """Every member holds the result of an exchange.

    Attributes:
        channel, number: as in :class:`ExchangeRequest`.
        members: of the channel, as they are now.
        contributions: together they cover the buffer.
        why_last: why no other exchange of the channel is held; empty where more may follow.
    """

    channel: int
    number: int
    members: tuple[int, ...]
    contributions: tuple[Contribution, ...]
    why_last: str = ""


class SubgroupRequest(Message, frozen=True):
    """A site would exchange with these sites alone, itself among them, in rising order.

    The name tells the subgroup from others of the same members.
    """

    members: tuple[int, ...]
    name: str = ""


class Subgrouped(Message, frozen=True):
    """The answer: the channel of these members, and the plan that it begins with."""

    channel: int
    members: tuple[int, ...]
    plan_json: str
    name: str = ""


class Gather(Message, frozen=True):
    """A site's small value, for every member of a channel.

    ``number`` counts the channel's gatherings from 1; ``value`` is encoded by who asked. ``what``
    says in words what it is gathered for, where another member makes another call. Where it
    ``admits``, the sites that wait to join are let in once all members have said so, and the answer
    is :class:`Admitted`; one of those that wait says it with number 0. The site has ``heard`` the
    answers to all gatherings up to that one.
    """

    channel: int
    number: int
    value: bytes
    admits: bool = False
    heard: int = 0
    what: str = ""


class Gathered(Message, frozen=True):
    """The values of all members, in the order of their indices, and who they are.

    All members have ``heard`` the answers up to that one: none need be remembered for the others.
    """

    channel: int
    number: int
    values: tuple[bytes, ...]
    members: tuple[int, ...] = ()
    heard: int = 0


class Admitted(Message, frozen=True):
    """To all members: from here on, some more sites are.

    Attributes:
        number: of the gathering, see :class:`Gather`.
        exchanges: how many all sites together have made.
        members: from now on.
        newcomers: those of them that have not got the state of training.
        holders: those that have.
        plan_json: from now on; empty where it is as before.
        follows: whether the newcomers *follow* from when the state is handed to them until they are
            :class:`InStep`: the others do not wait; they contribute nothing, and get all results.
    """

    number: int
    exchanges: int
    members: tuple[int, ...]
    newcomers: tuple[int, ...]
    holders: tuple[int, ...]
    plan_json: str
    follows: bool = False


class Called(Message, frozen=True):
    """To a member that follows: another one was the first to make a call, make it too.

    Attributes:
        number: of the exchange, or of the gathering that lets others in.
        place: among all calls, from 1.
        signature: what is exchanged; None where others are let in.
    """

    number: int
    place: int
    signature: Signature | None


class InStep(Message, frozen=True):
    """A member that follows takes part like any other from now on, and is waited for.

    Attributes:
        kept: the calls of others that its program has yet to go through.
        why: in words, where these are not 0.
    """

    kept: int
    why: str


class GatherFailed(Message, frozen=True):
    """Not all members will give a value; ``reason`` names who will not."""

    channel: int
    number: int
    reason: str


class Dispatched(Message, frozen=True):
    """The trees that carry an exchange's next chunks, in order."""

    exchange: int
    trees: tuple[int, ...]


class Progress(Message, frozen=True):
    """How many chunks of each tree a site holds the result of, where dispatch goes on."""

    exchange: int
    finished: tuple[int, ...]


class Auxiliary(Message, frozen=True):
    """A plan's auxiliary paths from now on; only the site that a chunk sets out from needs them."""

    version: int
    paths: tuple[tuple[int, ...], ...]


class LinkRate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a site measured of the link from ``source`` to itself."""

    source: int
    rate_bps: float
    latency_s: float | None
    chunks: int


class Measured(Message, frozen=True):
    """The latest measurements of a site's links, each newer than the last one it told of."""

    links: tuple[LinkRate, ...]


class ProceedRequest(Message, frozen=True):
    """From a worker: an update is on its way to the servers (R²SP's Request-to-Proceed).

    Attributes:
        update: which, from 1.
        samples: of its batch.
        compute_s: how long the worker computed.
        loss: of its batch; None if there is none.
    """

    update: int
    samples: int
    compute_s: float
    loss: float | None = None


class Proceed(Message, frozen=True):
    """To a worker: compute this update, on a batch of so many samples.

    (R²SP's Permission-to-Proceed.) ``pulls`` says whether the model comes for it; otherwise it is
    computed on the model in memory. ``client`` is the client that the worker stands for.
    ``looks`` says whether the worker evaluates the model that comes.
    """

    update: int
    samples: int
    pulls: bool
    client: int | None = None
    looks: bool = False


class Abandon(Message, frozen=True):
    """To a worker: its updates up to this one would come too late.

    It computes them no further and pushes none of them, but asks to proceed after each.

    Attributes:
        update: the last of them.
        model_comes: whether the models that they are computed on come nevertheless.
    """

    update: int
    model_comes: bool = True


class Came(Message, frozen=True):
    """From a server: all of its part of a worker's update has come.

    ``epoch`` is that of the sum that it has come in, where updates are added up on their way;
    ``squared_norm`` is of this part of the update, or of the mean of those that it was added up
    with, and None where no rule asks for it.
    """

    worker: int
    update: int
    epoch: int = 0
    squared_norm: float | None = None


class Advance(Message, frozen=True):
    """To the servers: take a step, then serve.

    Attributes:
        apply: updates that become part of the model, as (worker, update), in this order.
        discard: updates that never will.
        pulls: who gets the model as it then is, as (worker, the update it will compute).
        factors: for each update that is applied, what its step is multiplied by; empty for 1.
        share: how far the step goes to the mean of its updates; None for their weights' part of all
            workers'.
        deprecated: workers whose update under way is given up, as its model is too old.
        uncounted: workers whose last model is no part of the mean of all workers' any more.
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
        updates: those of the step, as (worker, update).
        dots: of each with the mean.
        squared_norms: of each.
        squared_norm: of the mean.
    """

    updates: tuple[tuple[int, int], ...]
    dots: tuple[float, ...]
    squared_norms: tuple[float, ...]
    squared_norm: float


class EpochChanged(Message, frozen=True):
    """Where updates are added up on their way: whose sums count from now on.

    Attributes:
        epoch: how many times that has changed.
        workers: who takes part, all of them.
        round: which update of every worker is under way; who has pushed that one pushes it again.
        version: of the plan that these updates follow.
    """

    epoch: int
    workers: tuple[int, ...]
    round: int
    version: int


class Reform(Message, frozen=True):
    """To all: where workers move in groups, these are formed anew. Answered by Reformed.

    Nothing of a group that is not there any more is under way, or counts.

    Attributes:
        plan_json: with the new groups; those that stay have the plans that they had.
        updates: of each group, which update its workers go on with.
    """

    plan_json: str
    updates: tuple[int, ...]


class Reformed(Message, frozen=True):
    """From a site: it knows of the groups of a plan, and nothing comes here of those before."""

    version: int


class NoMoreRounds(Message, frozen=True):
    """The answer to a request for an exchange that is not held, nor any after it.

    Attributes:
        number: the exchange's, on its channel.
        reason: why.
        channel: see :class:`ExchangeRequest`.
    """

    number: int
    reason: str = ""
    channel: int = 0


class Stopping(Message, frozen=True):
    """To all that gossip: the run is to end; finish the step that you are at, and no other."""


class PaceOver(Message, frozen=True):
    """To all: where the model is served, no worker goes on any more.

    Attributes:
        receivers: the workers to which the model comes that no step follows.
    """

    receivers: tuple[int, ...] = ()


class ExchangeEnded(Message, frozen=True):
    """A site holds the result of an exchange; ``checksum`` covers its model or buffer.

    The last chunk to become ready was one of ``tree``, and the neighbour ``waited_for`` sent it;
    None where none did.
    """

    channel: int
    number: int
    version: int
    seconds: float
    checksum: int | None
    waited_for: int | None = None
    tree: int | None = None


class Report(Message, frozen=True):
    """Events for the log, each an encoded record, opaque to the scheduler."""

    events: tuple[bytes, ...]


class Leave(Message, frozen=True):
    """A site has finished its work."""


class Failed(Message, frozen=True):
    """A site ends its part, through no fault of another; ``reason`` says why."""

    reason: str


class Shutdown(Message, frozen=True):
    """Every site has finished; this one may close."""


class Departed(Message, frozen=True):
    """To a site that has left, in place of :class:`Shutdown`: the others go on without it."""


class LinkCut(Message, frozen=True):
    """From the scheduler: nothing crosses the links to and from this neighbour any more."""

    neighbour: int


class SiteGone(Message, frozen=True):
    """From the scheduler: the run goes on without this site, for which no other need wait.

    ``reason`` says how it was lost, in words.
    """

    site: int
    reason: str


class LinkProbe(Message, frozen=True):
    """From the scheduler: can this neighbour be reached again? Answered by :class:`LinkProbed`."""

    neighbour: int


class LinkProbed(Message, frozen=True):
    """Whether a neighbour answered on a connection of its own."""

    neighbour: int
    answers: bool


class CutOff(Message, frozen=True):
    """From a site: its lane to or from a neighbour has ended. It may be that the neighbour died.

    ``incarnation`` is the neighbour's that it led to, see :class:`Welcome`.
    """

    neighbour: int
    reason: str
    incarnation: int = 0


class Silent(Message, frozen=True):
    """From a site: a neighbour says nothing for unusually long on a lane to or from it; or it does
    again.

    Where both ends say so, the links between them are gone round, if that leaves no site out.

    Attributes:
        neighbour: which.
        incarnation: of the neighbour, see :class:`Welcome`.
        is_silent: whether it is, or speaks again.
    """

    neighbour: int
    incarnation: int
    is_silent: bool


class Rejoined(Message, frozen=True):
    """To the neighbours of a site that died: another process of it is here, and where.

    Each neighbour answers :class:`RejoinAck`; the site begins when all have.
    """

    site: int
    incarnation: int
    host: str
    port: int


class RejoinAck(Message, frozen=True):
    """The answer to :class:`Rejoined`: lanes lead to the new process from now on."""

    site: int
    incarnation: int


class Abort(Message, frozen=True):
    """From the scheduler: the run is over, early; ``reason`` names who or what caused it.

    From a site: a lane of mine has broken; the scheduler decides who is to blame.

    Args:
        reason: see above.
        goes_on: whether the run goes on without the site that is told, which may join again.
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
    | Standing
    | Ack
    | Patience
    | StackRequest
    | Stack
    | Lagging
    | Welcome
    | Ready
    | Start
    | ExchangeRequest
    | AskAhead
    | ModelsDiffer
    | Unfit
    | Withdrawn
    | ModelTold
    | Awaited
    | Grant
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
    | Called
    | InStep
    | GatherFailed
    | Dispatched
    | Progress
    | Auxiliary
    | Measured
    | ProceedRequest
    | Proceed
    | Abandon
    | Came
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

# A message's bytes, and the message that bytes hold; the latter raises ``NO_MESSAGE``. They are the
# library's own methods, because every chunk passes here.
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder[AnyMessage](AnyMessage).decode
NO_MESSAGE = msgspec.DecodeError, ValueError  # the second one e.g. for invalid UTF-8
