"""Events of a run, as typed values: figures and reports use these alone.

An event is written as one JSON object whose ``kind`` names its type. Logs outlive releases, so a
reader meets events of other releases. None of them stops it:

- it ignores a field that this release does not know;
- an unknown kind, or a known kind without a required field, becomes an `UnknownEvent` with the text
  and the reason. Summaries count these and reports name them.

A field added to a published event therefore needs a default, or old logs lose that event.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

ReachedBy = Literal["first", "mean", "all"]
REACHED_BY: tuple[ReachedBy, ...] = get_args(ReachedBy)


def _kind(class_name: str) -> str:
    """Return the kind written for an event class: ``RoundDone`` is ``round_done``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_kind):
    """Something that happened."""

    at_s: float  # seconds since the run began; virtual seconds in simulation


class RunStarted(_Event, frozen=True, kw_only=True):
    """The first event of every log: what a report needs to know about the requested run."""

    label: str  # the run's name in tables and legends, usually its route
    overlay_toml: str  # the overlay, for `anabranch.overlay.loads`
    plan_json: str  # the first plan, for `anabranch.plan.loads`
    sites: list[str]  # names; every other event names a site by its index here
    buffer_bytes: int  # of the synchronised buffer; 0 where the run ended before it began
    chunk_elements: int  # the most elements of a chunk
    # Whether the sender, the kernel or the simulator held links to the overlay's rates, so that
    # predictions and limits apply.
    shaped: bool
    task: str
    model: str
    seed: int  # of every random choice
    rounds: int  # how many were requested
    predicted_s: float  # round time predicted with contention on links
    paper_s: float  # round time by the formula of the plan's paper
    # The physical limit: no plan on this overlay has a shorter round. None where it was not
    # computed; that takes long on large overlays.
    limit_s: float | None
    target_accuracy: float | None  # in [0, 1], or None where no target was set
    versions: dict[str, str]  # releases of the packages that affect figures, by name
    # UTC date and time, ISO 8601; None in simulation, where the log is the same byte for byte in
    # every run.
    started_at: str | None
    # "local": real processes on one machine; "emulated": the same over links that the machine's
    # kernel held to the overlay's rates; "simulated": one process, in virtual time.
    world: str = "local"
    # When the target is reached, where sites' models differ; see `anabranch.log.target`.
    reached_by: ReachedBy = "first"
    window_s: float = 0.0
    # The pace and the load, for a replay; empty where sites all-reduce, in rounds.
    pacing_json: str = ""
    # Whether sites average with neighbours: all exchange in a single round, at the end.
    gossips: bool = False
    # Whether the overlay's rates are equal placeholders for links of unknown rate.
    assumes_rates: bool = False


class RoundDone(_Event, frozen=True, kw_only=True):
    """One site holds the result of one round."""

    site: int
    round: int  # counts from 1
    version: int  # of the plan the round ran under
    seconds: float  # from the site's first request for the round to its result
    # Of the result, or None where none was requested. Equal at every site unless there is a fault.
    checksum: int | None
    # The neighbour whose message completed the round at this site; None where the site's own
    # sending was last, or where that is unknown.
    waited_for: int | None = None
    tree: int | None = None  # index into the plan's trees of that last message's chunk


class StepDone(_Event, frozen=True, kw_only=True):
    """One site finished one local update."""

    site: int
    round: int  # the round the step comes before
    loss: float | None  # mean over the samples; None for NaN and infinity, which JSON lacks
    samples: int
    compute_s: float


class Evaluated(_Event, frozen=True, kw_only=True):
    """One site measured its model on held-out data."""

    site: int
    round: int  # the round before it
    accuracy: float  # share of correct answers, in [0, 1]
    # The accuracy on each class's samples; None for a class without samples. None as a whole where
    # the task has no classes.
    by_class: list[float | None] | None = None
    # The local steps that the site had made, where sites make several between two rounds and their
    # models differ; None where they do not.
    step: int | None = None


class LinkBytes(_Event, frozen=True, kw_only=True):
    """The bytes that one link was given during the interval ``(at_s - seconds, at_s]``."""

    source: int
    target: int
    seconds: float
    # Bytes of messages, with relayed ones, without headers of network protocols.
    payload_bytes: int


class LinkMeasured(_Event, frozen=True, kw_only=True):
    """A site's new estimate of a link it receives over, from chunks of ordinary traffic."""

    site: int  # that measured: the link's target
    source: int
    target: int
    rate_bps: float  # of payload
    latency_s: float | None  # one way; None where the site could not measure it
    chunks: int  # how many chunks the estimate is from


class LinkChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A link whose estimated rate made the scheduler plan again."""

    source: int
    target: int
    was_bps: float | None  # the goodput that the previous plan was made for; None where assumed
    now_bps: float  # the goodput estimated now


class PlanIssued(_Event, frozen=True, kw_only=True):
    """The scheduler planned again: rounds not yet requested run under the new plan."""

    version: int
    plan_json: str  # for `anabranch.plan.loads`
    why: str  # in words
    changed: list[LinkChanged]
    # Predicted round time of the old plan on the network as estimated now, and of the new plan;
    # None where the old plan has become unusable.
    before_s: float | None
    after_s: float | None


class GroupsFormed(_Event, frozen=True, kw_only=True):
    """A plan's groups of workers took effect: all sites of the plan, issued before, have it."""

    version: int  # of the plan


class RoundBegan(_Event, frozen=True, kw_only=True):
    """The scheduler fixed a round's plan at the round's first request."""

    round: int  # counts from 1
    version: int  # of the plan
    site: int  # that requested first


class ProceedAsked(_Event, frozen=True, kw_only=True):
    """A worker's update is on its way to the servers, and the worker asks to proceed.

    In events of a pace, ``at_s`` is the time that the pace used for its decision.
    """

    site: int
    update: int  # number among the worker's updates, from 1
    samples: int  # of its batch
    compute_s: float
    loss: float | None = None  # of its batch


class SamplesHeld(_Event, frozen=True, kw_only=True):
    """How many samples a worker trains on: the weight of its updates."""

    site: int
    samples: int


class LabelsHeld(_Event, frozen=True, kw_only=True):
    """The labels of a site's training samples, in a task with one label for each sample."""

    site: int
    samples: list[int]  # how many of each class


class WorkerWent(_Event, frozen=True, kw_only=True):
    """The pace permitted an update: the worker pulls the model, computes, and pushes."""

    site: int
    update: int  # number of the permitted update, from 1
    samples: int  # of its batch
    client: int | None = None  # that it plays, where it plays many


class UpdateCame(_Event, frozen=True, kw_only=True):
    """The servers have all of a worker's update; the worker waits to proceed."""

    site: int
    update: int
    squared_norm: float | None = None  # of the update, where a rule weighs by it


class UpdateApplied(_Event, frozen=True, kw_only=True):
    """A worker's update became part of the model that the servers hold."""

    site: int
    update: int
    version: int  # of the model after it; steps count from 1, and may hold several updates
    missed: int  # its staleness: how many updates of others it missed
    factor: float | None = None  # its weight in the step, where a rule weighs updates


class UpdateDiscarded(_Event, frozen=True, kw_only=True):
    """A worker's update will not become part of the model: it is too old, or its worker died."""

    site: int
    update: int


class UpdateJudged(_Event, frozen=True, kw_only=True):
    """An update's agreement with the mean of its step, where outliers are filtered.

    ``cosine`` is of the angle between the update and the mean.
    """

    site: int
    update: int
    cosine: float


class ClientBarred(_Event, frozen=True, kw_only=True):
    """The filter barred a client as an outlier: it computes no updates until it is readmitted.

    ``client`` is its index among the registered clients; without registered clients, the site.
    """

    client: int


class ClientReadmitted(_Event, frozen=True, kw_only=True):
    """A barred client may compute updates again."""

    client: int


class PaceLooked(_Event, frozen=True, kw_only=True):
    """The pace checked what had become due as time passed; often nothing."""


class MessageRefused(_Event, frozen=True, kw_only=True):
    """A message was refused: malformed, oversized, repeated or out of order."""

    site: int | None  # that refused it, or None where the scheduler did
    sender: int | None  # None where it is unknown
    error: str  # its name
    detail: str  # its message


class SiteJoined(_Event, frozen=True, kw_only=True):
    """A site joined the run; a lost site joins again, as another process."""

    site: int
    name: str
    address: str  # where it listens, ``host:port``


class SiteInStep(_Event, frozen=True, kw_only=True):
    """A site that has followed the others since it joined is now a member like any other."""

    site: int
    kept: int  # calls of the others that its program must still make, while the others wait
    why: str  # in words, where there are such calls


class TransportChosen(_Event, frozen=True, kw_only=True):
    """A site's lanes do not send as configured."""

    site: int
    strands: int  # connections of each lane
    why: str  # in words, such as "bbr may not be set here"


class LinksEmulated(_Event, frozen=True, kw_only=True):
    """A relay process of this machine delayed the packets of all links; written after the run."""

    relay_busy: float  # how busy the relay was while it carried data, in [0, 1]


class SiteCut(_Event, frozen=True, kw_only=True):
    """A site's connection to the scheduler broke; each side keeps its undelivered messages."""

    site: int
    detail: str  # how the connection ended


class SiteResumed(_Event, frozen=True, kw_only=True):
    """A site whose connection had broken continues over a new connection."""

    site: int
    through: int | None = None  # the site that pipes the connection; None where it is direct


class SchedulerRestarted(_Event, frozen=True, kw_only=True):
    """The scheduler was restarted, and waits for the run's sites to reconnect."""

    awaited: list[int]


class SiteLost(_Event, frozen=True, kw_only=True):
    """A site was declared lost; rounds are complete without it until it joins again."""

    site: int
    detail: str  # the reason
    goes_on: bool = False  # whether the run continues without it, and its pace removed it


class SiteLeft(_Event, frozen=True, kw_only=True):
    """A site has left in good order, and the others continue without it."""

    site: int


class ExchangeRepaired(_Event, frozen=True, kw_only=True):
    """All members hold the result of an exchange during which a site or a link was lost."""

    channel: int  # of the exchange; 0 for all sites
    number: int  # among the channel's exchanges
    members: list[int]  # that hold the result
    reduced_elements: int  # that were reduced again, without the lost contributions
    spread_elements: int  # that came from a member that held them
    interrupted: int  # how many times a loss interrupted it


class FaultInjected(_Event, frozen=True, kw_only=True):
    """A fault script began or ended a fault."""

    fault: str  # its kind: "kill", "pause", "cut", "slow" or "clock"
    detail: str  # in words, such as "cut dc1->dc2 for 30 s"
    over: bool = False  # whether the fault ended


class RunStopping(_Event, frozen=True, kw_only=True):
    """The run starts nothing new, and ends when the work under way has ended."""

    reason: str  # as in `RunEnded`


class RunEnded(_Event, frozen=True, kw_only=True):
    """The last event of a run that was not killed."""

    error: str | None  # the error that ended the run, or None
    # Why it ended before all its rounds were done, such as "target accuracy 0.9 reached after 12
    # rounds", or that sites were barred to the end. None where it failed, or did all rounds but
    # those of lost sites.
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
    | GroupsFormed
    | ProceedAsked
    | SamplesHeld
    | LabelsHeld
    | WorkerWent
    | UpdateCame
    | UpdateApplied
    | UpdateDiscarded
    | UpdateJudged
    | ClientBarred
    | ClientReadmitted
    | PaceLooked
    | MessageRefused
    | SiteJoined
    | SiteInStep
    | TransportChosen
    | LinksEmulated
    | SiteCut
    | SiteResumed
    | SchedulerRestarted
    | SiteLost
    | SiteLeft
    | ExchangeRepaired
    | FaultInjected
    | RunStopping
    | RunEnded
)


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event written by another release, kept as text."""

    at_s: float
    kind: str  # as written
    data: str  # the whole JSON object
    reason: str  # why this release cannot read it


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
            a log must not hold what cannot be read back.

    >>> encode(Evaluated(at_s=2.5, site=0, round=4, accuracy=0.75))
    '{"kind":"evaluated","at_s":2.5,"site":0,"round":4,"accuracy":0.75,"by_class":null,"step":null}'
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
