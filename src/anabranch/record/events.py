"""What happens during a run, as typed values: every figure and report is made from these alone.

An event is written as one JSON object whose ``kind`` names its type. Logs outlive releases, so a
reader meets events of other releases; none of them stops it:

- a field this release does not know is ignored;
- a kind it does not know, or a known kind without a field it needs, becomes an `UnknownEvent`
  that keeps the text and says why. Summaries count these and reports name them.

A field added to a published event therefore needs a default, or old logs lose that event.
"""

from __future__ import annotations

import re

import msgspec


def _kind(class_name: str) -> str:
    """Return the kind written for an event class: ``RoundDone`` is ``round_done``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_kind):
    """Something that happened.

    Args:
        at_s: when, seconds since the run began (virtual seconds in simulation).
    """

    at_s: float


class RunStarted(_Event, frozen=True, kw_only=True):
    """The first event of every log: all that a report needs to know of what was meant to happen.

    Args:
        label: the run's name in tables and legends, usually its route.
        overlay_toml: the overlay as text, for `anabranch.overlay.loads`.
        plan_json: the first plan as text, for `anabranch.plan.loads`.
        sites: names; every other event names a site by its index here.
        buffer_bytes: size of the synchronised buffer; 0 where the run ended before it began.
        chunk_elements: the most elements of a chunk.
        shaped: whether links were held to the overlay's rates, by us, by the kernel or by the
            simulator, so that predictions and limits apply.
        task, model: what was trained.
        seed: of every random choice.
        rounds: how many were asked for.
        predicted_s: round time predicted with contention on links, seconds.
        paper_s: round time by the formula of the plan's paper, seconds.
        limit_s: the physical limit: no plan on this overlay has a shorter round, seconds; None
            where it was not computed, which takes long on large overlays.
        target_accuracy: in [0, 1], or None where no target was set.
        versions: release of each package that matters, by name.
        started_at: UTC date and time, ISO 8601; None in simulation, where a run has no date: its
            log is the same byte for byte every time.
        world: "local" where real processes ran on one machine, "emulated" where they did so over
            links that the machine's kernel held to the overlay's rates, "simulated" where the whole
            run took place in one process and in virtual time.
        pacing_json: who may proceed when, and with how much work, as text for
            `anabranch.run.replay`; empty where sites all-reduce, in rounds.
    """

    label: str
    overlay_toml: str
    plan_json: str
    sites: list[str]
    buffer_bytes: int
    chunk_elements: int
    shaped: bool
    task: str
    model: str
    seed: int
    rounds: int
    predicted_s: float
    paper_s: float
    limit_s: float | None
    target_accuracy: float | None
    versions: dict[str, str]
    started_at: str | None
    world: str = "local"
    pacing_json: str = ""


class RoundDone(_Event, frozen=True, kw_only=True):
    """One site holds the result of one round.

    Args:
        site, round: which; rounds count from 1.
        version: of the plan the round ran under.
        seconds: from the site's first request for the round to its result.
        checksum: of the result, or None where nobody asked for one. Equal on every site unless
            something is broken.
        waited_for: the neighbour whose message completed the round at this site; None where the
            site's own sending was last, or that is not known.
        tree: index into the plan's trees of that last message's chunk, or None.
    """

    site: int
    round: int
    version: int
    seconds: float
    checksum: int | None
    waited_for: int | None = None
    tree: int | None = None


class StepDone(_Event, frozen=True, kw_only=True):
    """One site finished one local update.

    Args:
        site, round: which site, and the round the step comes before.
        loss: mean over the samples; None (written for NaN and infinity, which JSON lacks) where
            training diverged.
        samples: how many were drawn.
        compute_s: seconds spent computing.
    """

    site: int
    round: int
    loss: float | None
    samples: int
    compute_s: float


class Evaluated(_Event, frozen=True, kw_only=True):
    """One site measured its model on held-out data.

    Args:
        site, round: which site, after which round.
        accuracy: share of correct answers, in [0, 1].
    """

    site: int
    round: int
    accuracy: float


class LinkBytes(_Event, frozen=True, kw_only=True):
    """What one link was given to carry during the interval ``(at_s - seconds, at_s]``.

    Args:
        source, target: the link's two sites.
        seconds: length of the interval.
        payload_bytes: bytes of message handed to the link, relayed ones included, headers of the
            network's own protocols excluded.
    """

    source: int
    target: int
    seconds: float
    payload_bytes: int


class LinkMeasured(_Event, frozen=True, kw_only=True):
    """A site's new estimate of a link it receives over, from chunks that passed anyway.

    Args:
        site: who measured: the link's target.
        source, target: the link's two sites.
        rate_bps: payload rate, bit/s.
        latency_s: one way, seconds; None where it could not be told.
        chunks: how many the estimate rests on.
    """

    site: int
    source: int
    target: int
    rate_bps: float
    latency_s: float | None
    chunks: int


class LinkChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A link whose believed rate moved the scheduler to plan again.

    Args:
        source, target: the link's two sites.
        was_bps: the goodput that the plan so far was made for, bit/s.
        now_bps: the goodput believed now, bit/s.
    """

    source: int
    target: int
    was_bps: float
    now_bps: float


class PlanIssued(_Event, frozen=True, kw_only=True):
    """The scheduler planned again: rounds that nobody has asked for yet run under the new plan.

    Args:
        version: of the new plan.
        plan_json: the new plan as text, for `anabranch.plan.loads`.
        why: the reason, in words.
        changed: the links that moved it.
        before_s, after_s: predicted round time of the old and of the new plan on the network as
            believed now, seconds.
    """

    version: int
    plan_json: str
    why: str
    changed: list[LinkChanged]
    before_s: float
    after_s: float


class RoundBegan(_Event, frozen=True, kw_only=True):
    """The scheduler fixed the plan that a round runs under, at the round's first request.

    Args:
        round: its number, from 1.
        version: of the plan.
        site: who asked first.
    """

    round: int
    version: int
    site: int


class ProceedAsked(_Event, frozen=True, kw_only=True):
    """A worker's update is on its way to the servers, and it asks to go on.

    In events of a pace, ``at_s`` is the very moment that the pace reckoned with.

    Args:
        site: the worker.
        update: which of its updates, from 1.
        samples: of its batch.
        compute_s: how long the worker computed.
    """

    site: int
    update: int
    samples: int
    compute_s: float


class WorkerWent(_Event, frozen=True, kw_only=True):
    """The pace let a worker go on: pull the model, compute, and push.

    Args:
        site: the worker.
        update: which of its updates it goes on to, from 1.
        samples: of its batch.
    """

    site: int
    update: int
    samples: int


class UpdateCame(_Event, frozen=True, kw_only=True):
    """All of a worker's update is with the servers; the worker waits to go on.

    Args:
        site, update: which worker's, and which of its updates.
    """

    site: int
    update: int


class UpdateApplied(_Event, frozen=True, kw_only=True):
    """A worker's update became part of the model that the servers hold.

    Args:
        site, update: which worker's, and which of its updates.
        version: of the model since; steps count from 1, and may hold several updates.
        missed: how many updates of others it missed: its staleness.
    """

    site: int
    update: int
    version: int
    missed: int


class UpdateDiscarded(_Event, frozen=True, kw_only=True):
    """A worker's update will not become part of the model: it is too old, or its worker died.

    Args:
        site, update: which worker's, and which of its updates.
    """

    site: int
    update: int


class PaceLooked(_Event, frozen=True, kw_only=True):
    """Time had passed, and the pace decided what had become due; often nothing."""


class MessageRefused(_Event, frozen=True, kw_only=True):
    """A message was refused: malformed, oversized, repeated or out of place.

    Args:
        site: who refused it, or None where the scheduler did.
        sender: who sent it, or None where that could not be told.
        error: the name of the error.
        detail: its message.
    """

    site: int | None
    sender: int | None
    error: str
    detail: str


class SiteJoined(_Event, frozen=True, kw_only=True):
    """A site takes part from now on; one that was lost does so again, as another process.

    Args:
        site, name: which.
        address: where it listens, ``host:port``.
    """

    site: int
    name: str
    address: str


class TransportChosen(_Event, frozen=True, kw_only=True):
    """A site's lanes do not send as they were asked to.

    Args:
        site: whose lanes.
        strands: connections of each lane.
        why: in words, such as "bbr may not be set here".
    """

    site: int
    strands: int
    why: str


class SiteCut(_Event, frozen=True, kw_only=True):
    """A site's connection to the scheduler has broken; both keep what the other did not hear.

    Args:
        site: which.
        detail: how the connection ended.
    """

    site: int
    detail: str


class SiteResumed(_Event, frozen=True, kw_only=True):
    """A site whose connection had broken goes on over another.

    Args:
        site: which.
    """

    site: int


class SiteLost(_Event, frozen=True, kw_only=True):
    """A site takes no part from now on; rounds are complete without it until it joins again.

    Args:
        site: which.
        detail: what made us give it up.
        goes_on: whether the run goes on without it, and its pace was told so.
    """

    site: int
    detail: str
    goes_on: bool = False


class FaultInjected(_Event, frozen=True, kw_only=True):
    """A fault script acted, or a fault of its making ended: what follows was provoked.

    Args:
        fault: its kind: "kill", "pause", "cut", "slow" or "clock".
        detail: in words, such as "cut dc1->dc2 for 30 s".
        over: whether this is its end.
    """

    fault: str
    detail: str
    over: bool = False


class RunStopping(_Event, frozen=True, kw_only=True):
    """Nobody begins anything new from now on; the run ends when what is under way has.

    Args:
        reason: why, as in `RunEnded`.
    """

    reason: str


class RunEnded(_Event, frozen=True, kw_only=True):
    """The last event of a run that was not killed.

    Args:
        error: what went wrong, or None where nothing did.
        reason: why it ended on purpose before all its rounds were done, such as "target accuracy
            0.9 reached after 12 rounds"; None where it did them all, or failed.
    """

    error: str | None
    reason: str | None = None


Event = (
    RunStarted
    | RoundBegan
    | RoundDone
    | StepDone
    | Evaluated
    | LinkBytes
    | LinkMeasured
    | PlanIssued
    | ProceedAsked
    | WorkerWent
    | UpdateCame
    | UpdateApplied
    | UpdateDiscarded
    | PaceLooked
    | MessageRefused
    | SiteJoined
    | TransportChosen
    | SiteCut
    | SiteResumed
    | SiteLost
    | FaultInjected
    | RunStopping
    | RunEnded
)


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event written by another release, kept as text.

    Args:
        at_s: when, seconds since the run began.
        kind: as written.
        data: the whole JSON object.
        reason: why this release cannot read it.
    """

    at_s: float
    kind: str
    data: str
    reason: str


class _Header(msgspec.Struct):
    at_s: float
    kind: str


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_header_decoder = msgspec.json.Decoder(_Header)


def kind_of(event: Event) -> str:
    """Return the kind an event is written with.

    >>> kind_of(RunEnded(at_s=1.0, error=None))
    'run_ended'
    """
    return str(event.__struct_config__.tag)


def encode(event: Event) -> str:
    """Write an event as JSON.

    Raises:
        ValueError: a field has a value of another type, or a number that JSON lacks, such as NaN;
            a log must not take in what nobody can read back.

    >>> encode(Evaluated(at_s=2.5, site=0, round=4, accuracy=0.75))
    '{"kind":"evaluated","at_s":2.5,"site":0,"round":4,"accuracy":0.75}'
    """
    try:
        data = _encoder.encode(event)
        _decoder.decode(data)
    except (TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"cannot record {kind_of(event)}: {error}") from error
    return data.decode()


def decode(data: str) -> Event | UnknownEvent:
    """Read an event that `encode` wrote, in this release or another.

    Raises:
        ValueError: the text is not a JSON object with an ``at_s`` and a ``kind``.

    >>> decode('{"kind":"evaluated","at_s":2.5,"site":0,"round":4,"accuracy":0.75}').accuracy
    0.75
    >>> decode('{"kind":"eclipse","at_s":2.5}').reason
    "Invalid value 'eclipse' - at `$.kind`"
    """
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError as error:
        reason = str(error)
    except msgspec.DecodeError as error:
        raise ValueError(f"not an event: {error}") from error
    try:
        header = _header_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"not an event: {error}") from error
    return UnknownEvent(at_s=header.at_s, kind=header.kind, data=data, reason=reason)
