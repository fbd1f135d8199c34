from __future__ import annotations

import json
import math

import msgspec
import pytest

from anabranch.log import (
    Evaluated,
    Event,
    ExchangeRepaired,
    FaultInjected,
    GroupsFormed,
    LabelsHeld,
    LinkBytes,
    LinkChanged,
    LinkMeasured,
    LinksEmulated,
    MessageRefused,
    PaceLooked,
    PlanIssued,
    ProceedAsked,
    RoundBegan,
    RoundDone,
    RunEnded,
    RunStarted,
    RunStopping,
    SamplesHeld,
    SchedulerRestarted,
    SiteCut,
    SiteInStep,
    SiteJoined,
    SiteLeft,
    SiteLost,
    SiteResumed,
    StepDone,
    TransportChosen,
    UnknownEvent,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    UpdateJudged,
    WorkerWent,
)
from anabranch.log.events import ClientBarred, ClientReadmitted, decode, encode, kind_of

STARTED = RunStarted(
    at_s=0.0,
    label="packed",
    overlay_toml='name = "x"',
    plan_json="{}",
    sites=["Oslo", "Lima"],
    buffer_bytes=4,
    chunk_elements=1,
    shaped=True,
    task="digits",
    model="mlp",
    seed=7,
    rounds=3,
    predicted_s=2.5,
    paper_s=3.0,
    limit_s=1.0,
    target_accuracy=None,
    versions={"anabranch": "0.1.0"},
    started_at="2030-01-02T03:04:05Z",
)
ONE_OF_EACH: list[Event] = [
    STARTED,
    RoundBegan(at_s=0.25, round=0, version=2, site=1),
    RoundDone(
        at_s=1.5,
        site=1,
        round=0,
        version=2,
        seconds=1.25,
        checksum=2**64 - 1,
        waited_for=0,
        tree=3,
    ),
    StepDone(at_s=0.5, site=1, round=0, loss=0.25, samples=32, compute_s=0.125),
    Evaluated(at_s=2.0, site=0, round=0, accuracy=0.5, by_class=[0.25, None, 1.0]),
    LinkBytes(at_s=2.0, source=0, target=1, seconds=0.5, payload_bytes=1024),
    LinkMeasured(at_s=2.0, site=1, source=0, target=1, rate_bps=1e6, latency_s=None, chunks=8),
    GroupsFormed(at_s=1.0, version=5),
    PlanIssued(
        at_s=2.5,
        version=3,
        plan_json="{}",
        why="Oslo->Lima fell",
        changed=[LinkChanged(source=0, target=1, was_bps=2e6, now_bps=1e6)],
        before_s=4.0,
        after_s=2.0,
    ),
    ProceedAsked(at_s=2.5, site=1, update=3, samples=64, compute_s=0.25, loss=2.5),
    SamplesHeld(at_s=0.0, site=1, samples=5000),
    LabelsHeld(at_s=0.0, site=1, samples=[2000, 0, 3000]),
    WorkerWent(at_s=2.5, site=1, update=4, samples=64),
    UpdateCame(at_s=2.5, site=1, update=3),
    UpdateApplied(at_s=2.5, site=1, update=3, version=7, missed=2),
    UpdateDiscarded(at_s=2.5, site=1, update=3),
    UpdateJudged(at_s=2.5, site=1, update=3, cosine=0.25),
    ClientBarred(at_s=2.5, client=17),
    ClientReadmitted(at_s=7.5, client=17),
    PaceLooked(at_s=2.5),
    MessageRefused(at_s=2.0, site=0, sender=None, error="DuplicateMessage", detail='chunk "3"'),
    SiteInStep(at_s=1.5, site=1, kept=2, why="its program does not catch up"),
    SiteJoined(at_s=0.0, site=1, name="Lima", address="192.0.2.7:4000"),
    TransportChosen(at_s=0.1, site=1, strands=4, why="bbr may not be set here"),
    LinksEmulated(at_s=0.0, relay_busy=0.25),
    SiteCut(at_s=2.5, site=1, detail="Lima closed the connection"),
    SiteResumed(at_s=2.75, site=1),
    SchedulerRestarted(at_s=2.8, awaited=[0, 1]),
    SiteLeft(at_s=2.9, site=2),
    SiteLost(at_s=3.0, site=1, detail="silent for 2 s", goes_on=True),
    ExchangeRepaired(
        at_s=3.25,
        channel=0,
        number=7,
        members=[0, 2],
        reduced_elements=1000,
        spread_elements=24,
        interrupted=2,
    ),
    FaultInjected(at_s=3.5, fault="cut", detail="cut Oslo->Lima for 30 s", over=True),
    RunStopping(at_s=3.5, reason="time is up after 1 round"),
    RunEnded(at_s=4.0, error=None, reason="time is up after 1 round"),
]


def test_one_of_each_is_tested() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(Event.__args__)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=kind_of)
def test_decoding_gives_back_what_was_encoded(event: Event) -> None:
    assert decode(encode(event)) == event


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=kind_of)
def test_the_text_is_json_that_names_kind_and_time(event: Event) -> None:
    fields = json.loads(encode(event))
    assert (fields["kind"], fields["at_s"]) == (kind_of(event), event.at_s)


def test_kinds_are_words_joined_by_underscores() -> None:
    assert kind_of(STARTED) == "run_started"


def test_diverged_loss_is_recorded_as_none() -> None:
    step = StepDone(at_s=0.5, site=1, round=0, loss=math.nan, samples=32, compute_s=0.1)
    assert decode(encode(step)) == msgspec.structs.replace(step, loss=None)


@pytest.mark.parametrize(
    "event",
    [
        RunEnded(at_s=math.nan, error=None),
        Evaluated(at_s=1.0, site=0, round=0, accuracy=math.inf),
        Evaluated(at_s=1.0, site="Oslo", round=0, accuracy=0.5),  # type: ignore[arg-type]
        RunEnded(at_s=1.0, error=object()),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_read_back_is_not_written(event: Event) -> None:
    with pytest.raises(ValueError, match="cannot record"):
        encode(event)


def test_unknown_kind_is_kept_with_its_reason() -> None:
    data = '{"kind":"eclipse","at_s":2.5,"site":1}'
    event = decode(data)
    assert isinstance(event, UnknownEvent)
    assert (event.at_s, event.kind, event.data) == (2.5, "eclipse", data)
    assert "eclipse" in event.reason


def test_known_kind_without_a_field_it_needs_is_kept_as_unknown() -> None:
    event = decode('{"kind":"evaluated","at_s":2.5,"site":1}')
    assert isinstance(event, UnknownEvent)
    assert event.kind == "evaluated"
    assert "round" in event.reason


def test_fields_of_a_newer_release_are_ignored() -> None:
    assert decode('{"kind":"run_ended","at_s":1.0,"error":null,"mood":"fine"}') == RunEnded(
        at_s=1.0, error=None
    )


def test_logs_of_before_there_was_a_simulation_can_be_read() -> None:
    fields = json.loads(encode(STARTED))
    del fields["world"]
    assert decode(json.dumps(fields)) == STARTED
    assert STARTED.world == "local"
    assert decode('{"kind":"run_ended","at_s":1.0,"error":null}') == RunEnded(
        at_s=1.0, error=None, reason=None
    )


def test_logs_of_before_they_could_be_replayed_can_be_read() -> None:
    fields = json.loads(encode(STARTED))
    del fields["pacing_json"]
    assert decode(json.dumps(fields)) == STARTED
    data = '{"kind":"site_lost","at_s":3.0,"site":1,"detail":"silent"}'
    assert decode(data) == SiteLost(at_s=3.0, site=1, detail="silent", goes_on=False)


def test_logs_of_before_faults_had_an_end_can_be_read() -> None:
    data = '{"kind":"fault_injected","at_s":1.0,"fault":"cut","detail":"cut Oslo->Lima"}'
    assert decode(data) == FaultInjected(at_s=1.0, fault="cut", detail="cut Oslo->Lima", over=False)


def test_logs_of_before_sites_said_whom_they_waited_for_can_be_read() -> None:
    done = RoundDone(at_s=1.5, site=1, round=0, version=2, seconds=1.25, checksum=None)
    fields = json.loads(encode(done))
    del fields["waited_for"], fields["tree"]
    assert decode(json.dumps(fields)) == done
    assert (done.waited_for, done.tree) == (None, None)


def test_a_simulated_run_has_no_date_and_may_have_no_limit() -> None:
    started = msgspec.structs.replace(STARTED, world="simulated", started_at=None, limit_s=None)
    assert decode(encode(started)) == started


@pytest.mark.parametrize("data", ["", "{", "[]", '{"kind":"run_ended"}', '{"at_s":1.0}'])
def test_what_is_not_an_event_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="not an event"):
        decode(data)
