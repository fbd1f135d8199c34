"""Events of a run, as typed values: every figure and report is made from these alone.

An event is written as one JSON object whose ``kind`` names its type. Logs outlive releases, so a
reader meets events of other releases; none of them stops it:

- a field this release does not know is ignored;
- a kind it does not know, or a known kind without a field it needs, becomes an `UnknownEvent`
  that keeps the text and says why. Summaries count these and reports name them.

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
    """The first event of every log: all that a report needs to know of what was asked for."""

    label: str  # the run's name in tables and legends, usually its route
    overlay_toml: str  # the overlay, for `anabranch.overlay.loads`
    plan_json: str  # the first plan, for `anabranch.plan.loads`
    sites: list[str]  # names; every other event names a site by its index here
    buffer_bytes: int  # of the synchronised buffer; 0 where the run ended before it began
    chunk_elements: int  # the most elements of a chunk
    # Whether links were held to the overlay's rates, by the sender, by the kernel or by the
    # simulator, so that predictions and limits apply.
    shaped: bool
    task: str
    model: str
    seed: int  # of every random choice
    rounds: int  # how many were asked for
    predicted_s: float  # round time predicted with contention on links
    paper_s: float  # round time by the formula of the plan's paper
    # The physical limit: no plan on this overlay has a shorter round; None where it was not
    # computed, which takes long on large overlays.
    limit_s: float | None
    target_accuracy: float | None  # in [0, 1], or None where no target was set
    versions: dict[str, str]  # release of each package that matters, by name
    # UTC date and time, ISO 8601; None in simulation, where the log is the same byte for byte
    # every time.
    started_at: str | None
    # "local": real processes on one machine; "emulated": the same over links that the machine's
    # kernel held to the overlay's rates; "simulated": one process, in virtual time.
    world: str = "local"
    # When the target is reached, where sites' models differ; see `anabranch.log.target`.
    reached_by: ReachedBy = "first"
    # Who may proceed when, and with how much work, for a replay; empty where sites
    # all-reduce, in rounds.
    pacing_json: str = ""
    # Whether sites average with neighbours: all exchange in one round alone, at the end.
    gossips: bool = False
    # Whether the overlay's rates are placeholders, all alike, for links that nothing was known of.
    assumes_rates: bool = False


class RoundDone(_Event, frozen=True, kw_only=True):
    """One site holds the result of one round."""

    site: int
    round: int  # counts from 1
    version: int  # of the plan the round ran under
    seconds: float  # from the site's first request for the round to its result
    # Of the result, or None where none was asked for. Equal on every site unless something is
    # broken.
    checksum: int | None
    # The neighbour whose message completed the round at this site; None where the site's own
    # sending was last, or that is not known.
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
    round: int  # after which
    accuracy: float  # share of correct answers, in [0, 1]
    # The same of each class's samples; None for a class without any. None for all where the task
    # has no classes.
    by_class: list[float | None] | None = None
    # How many local steps the site had made, where sites make several between two rounds and their
    # models differ; None where they do not.
    step: int | None = None


class LinkBytes(_Event, frozen=True, kw_only=True):
    """What one link was given to carry during the interval ``(at_s - seconds, at_s]``."""

    source: int
    target: int
    seconds: float
    # Bytes of messages, relayed ones included, headers of the network's own protocols excluded.
    payload_bytes: int


class LinkMeasured(_Event, frozen=True, kw_only=True):
    """A site's new estimate of a link it receives over, from chunks that passed anyway."""

    site: int  # which measured: the link's target
    source: int
    target: int
    rate_bps: float  # of payload
    latency_s: float | None  # one way; None where it could not be told
    chunks: int  # how many the estimate rests on


class LinkChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A link whose believed rate moved the scheduler to plan again."""

    source: int
    target: int
    was_bps: float | None  # the goodput that the plan so far was made for; None where assumed
    now_bps: float  # the goodput believed now


class PlanIssued(_Event, frozen=True, kw_only=True):
    """The scheduler planned again: rounds not yet asked for run under the new plan."""

    version: int
    plan_json: str  # for `anabranch.plan.loads`
    why: str  # in words
    changed: list[LinkChanged]
    # Predicted round time of the old plan on the network as believed now, and of the new one; None
    # where the old one cannot be used any more.
    before_s: float | None
    after_s: float | None


class GroupsFormed(_Event, frozen=True, kw_only=True):
    """Workers move in the groups of a plan issued before: all of its sites know of it."""

    version: int  # of the plan


class RoundBegan(_Event, frozen=True, kw_only=True):
    """The scheduler fixed the plan that a round runs under, at the round's first request."""

    round: int  # counts from 1
    version: int  # of the plan
    site: int  # which asked first


class ProceedAsked(_Event, frozen=True, kw_only=True):
    """A worker's update is on its way to the servers, and it asks to go on.

    In events of a pace, ``at_s`` is the moment that the pace decided with.
    """

    site: int
    update: int  # which of the worker's updates, from 1
    samples: int  # of its batch
    compute_s: float
    loss: float | None = None  # of its batch


class SamplesHeld(_Event, frozen=True, kw_only=True):
    """How many samples a worker trains on, by which its updates are weighed."""

    site: int
    samples: int


class LabelsHeld(_Event, frozen=True, kw_only=True):
    """Which samples a site trains on, in a task that has one label for each."""

    site: int
    samples: list[int]  # how many of each class


class WorkerWent(_Event, frozen=True, kw_only=True):
    """The pace permitted an update: the worker pulls the model, computes, and pushes."""

    site: int
    update: int  # which of its updates it goes on to, from 1
    samples: int  # of its batch
    client: int | None = None  # that it stands for, where it stands for many


class UpdateCame(_Event, frozen=True, kw_only=True):
    """All of a worker's update is with the servers; the worker waits to go on."""

    site: int
    update: int
    squared_norm: float | None = None  # of what came, where updates are weighed by it


class UpdateApplied(_Event, frozen=True, kw_only=True):
    """A worker's update became part of the model that the servers hold."""

    site: int
    update: int
    version: int  # of the model since; steps count from 1, and may hold several updates
    missed: int  # its staleness: how many updates of others it missed
    factor: float | None = None  # what its step was multiplied by, where a rule weighs updates


class UpdateDiscarded(_Event, frozen=True, kw_only=True):
    """A worker's update will not become part of the model: it is too old, or its worker died."""

    site: int
    update: int


class UpdateJudged(_Event, frozen=True, kw_only=True):
    """How far an update agreed with the mean of its step, where outliers are filtered.

    ``cosine`` is of the angle between the two.
    """

    site: int
    update: int
    cosine: float


class ClientBarred(_Event, frozen=True, kw_only=True):
    """A client was found to be an outlier: it takes no part until it is readmitted.

    ``client`` is its index among those that are registered, or the site that stands for itself.
    """

    client: int


class ClientReadmitted(_Event, frozen=True, kw_only=True):
    """A client that was barred takes part again."""

    client: int


class PaceLooked(_Event, frozen=True, kw_only=True):
    """Time had passed, and the pace decided what had become due; often nothing."""


class MessageRefused(_Event, frozen=True, kw_only=True):
    """A message was refused: malformed, oversized, repeated or out of place."""

    site: int | None  # which refused it, or None where the scheduler did
    sender: int | None  # None where that could not be told
    error: str  # its name
    detail: str  # its message


class SiteJoined(_Event, frozen=True, kw_only=True):
    """A site takes part from now on; one that was lost does so again, as another process."""

    site: int
    name: str
    address: str  # where it listens, ``host:port``


class SiteInStep(_Event, frozen=True, kw_only=True):
    """A site that has followed the others since it joined takes part like any other."""

    site: int
    kept: int  # calls of others that its program has yet to go through, while the others wait
    why: str  # in words, where there are such


class TransportChosen(_Event, frozen=True, kw_only=True):
    """A site's lanes do not send as they were asked to."""

    site: int
    strands: int  # connections of each lane
    why: str  # in words, such as "bbr may not be set here"


class LinksEmulated(_Event, frozen=True, kw_only=True):
    """A process of this machine delayed the packets of all links; written once the run is over."""

    relay_busy: float  # how busy it was while it carried data, in [0, 1]


class SiteCut(_Event, frozen=True, kw_only=True):
    """A site's connection to the scheduler broke; both keep what the other did not receive."""

    site: int
    detail: str  # how the connection ended


class SiteResumed(_Event, frozen=True, kw_only=True):
    """A site whose connection had broken goes on over another."""

    site: int
    through: int | None = None  # the site that pipes it; None where it leads there directly


class SchedulerRestarted(_Event, frozen=True, kw_only=True):
    """The scheduler was restarted, and waits for the sites that were in the run to come back."""

    awaited: list[int]


class SiteLost(_Event, frozen=True, kw_only=True):
    """A site takes no part from now on; rounds are complete without it until it joins again."""

    site: int
    detail: str  # why it was given up
    goes_on: bool = False  # whether the run goes on without it, and its pace was told so


class SiteLeft(_Event, frozen=True, kw_only=True):
    """A site has left in good order, and the others go on without it."""

    site: int


class ExchangeRepaired(_Event, frozen=True, kw_only=True):
    """All members hold the result of an exchange that had lost a site or a link on its way."""

    channel: int  # whose; 0 for all sites'
    number: int  # among those of its members
    members: list[int]  # that hold it
    reduced_elements: int  # that were reduced again, without what is lost
    spread_elements: int  # that came from a member that held them
    interrupted: int  # how many times


class FaultInjected(_Event, frozen=True, kw_only=True):
    """A fault script acted, or a fault of its making ended."""

    fault: str  # its kind: "kill", "pause", "cut", "slow" or "clock"
    detail: str  # in words, such as "cut dc1->dc2 for 30 s"
    over: bool = False  # whether this is its end


class RunStopping(_Event, frozen=True, kw_only=True):
    """Nothing new begins from now on; the run ends when what is under way has."""

    reason: str  # as in `RunEnded`


class RunEnded(_Event, frozen=True, kw_only=True):
    """The last event of a run that was not killed."""

    error: str | None  # what went wrong, or None
    # Why it ended before all its rounds were done, such as "target accuracy 0.9 reached after 12
    # rounds", or that sites were barred to the end; None where it failed, or did all of them that
    # lost sites were not to do.
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
            a log must not take in what cannot be read back.

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
