from __future__ import annotations

import msgspec
import pytest

from anabranch.log import (
    Evaluated,
    Event,
    FaultInjected,
    LabelsHeld,
    LinkBytes,
    LinkMeasured,
    MessageRefused,
    RoundDone,
    RunEnded,
    RunStarted,
    SiteJoined,
    SiteLost,
    StepDone,
    UnknownEvent,
    Wait,
    WorkerWent,
    summarise,
)
from anabranch.log.summary import (
    AccuracyPoint,
    CompletedRound,
    Dispute,
    observed,
)
from anabranch.plan import Plan


def done(
    round: int,
    *sites: int,
    at_s: float = 1.0,
    seconds: float = 1.0,
    checksum: int | None = None,
    version: int = 1,
) -> list[Event]:
    return [
        RoundDone(
            at_s=at_s, site=site, round=round, version=version, seconds=seconds, checksum=checksum
        )
        for site in sites
    ]


def test_a_whole_run(run) -> None:
    summary = summarise(run())
    assert summary.label == "star"
    assert summary.sites == ("Oslo", "Lima", "Kyoto", "Perth")
    assert summary.rounds == (
        CompletedRound(0, 1, 2.0, 2.0),
        CompletedRound(1, 1, 6.0, 4.0),
        CompletedRound(2, 1, 9.0, 3.0),
    )
    assert summary.round_s == (2.0, 4.0, 3.0)
    assert summary.median_round_s == 3.0
    assert summary.interval_s == (2.0, 4.0, 3.0)
    assert summary.total_s == 9.0
    assert summary.ended
    assert summary.error is None
    assert summary.plan_versions == (1,)


def test_a_round_lasts_as_long_as_its_slowest_site(start) -> None:
    events = [*done(0, 0, 1, 3, seconds=1.0), *done(0, 2, at_s=5.0, seconds=4.0)]
    assert summarise([start(), *events]).rounds == (CompletedRound(0, 1, 5.0, 4.0),)


def test_intervals_have_in_them_what_the_exchange_has_not(run) -> None:
    summary = summarise(run(round_s=(2.0, 4.0, 3.0), idle_s=1.0))
    assert summary.round_s == (2.0, 4.0, 3.0)
    assert summary.interval_s == (3.0, 5.0, 4.0)  # the first from the beginning of the run
    assert (summary.median_round_s, summary.median_interval_s) == (3.0, 4.0)


def test_an_interval_ends_with_the_last_site_however_short_each_was_at_it(start) -> None:
    first = [*done(1, 0, 1, 2, at_s=2.0, seconds=1.0), *done(1, 3, at_s=5.0, seconds=0.5)]
    second = done(2, 0, 1, 2, 3, at_s=12.0, seconds=1.0)
    third = done(3, 0, 1, 2, at_s=30.0)  # never completed
    summary = summarise([start(), *first, *second, *third])
    assert summary.interval_s == (5.0, 7.0)
    assert summary.median_interval_s == 6.0


def test_a_run_ends_when_the_scheduler_says_so_whatever_a_site_s_clock_says(start) -> None:
    fast = LinkBytes(at_s=1000.0, source=0, target=1, seconds=1.0, payload_bytes=7)
    ended = RunEnded(at_s=2.5, error=None)
    assert summarise([start(), *done(1, 0, 1, 2, 3, at_s=2.0), fast]).total_s == 1000.0
    assert summarise([start(), *done(1, 0, 1, 2, 3, at_s=2.0), fast, ended]).total_s == 2.5


def test_a_round_some_site_has_not_finished_does_not_count(start) -> None:
    summary = summarise([start(), *done(0, 0, 1, 2, 3), *done(1, 0, 1, 2)])
    assert [r.round for r in summary.rounds] == [0]


def test_a_repeated_round_counts_once_as_it_ended_last(start) -> None:
    again = done(0, 0, 1, 2, 3, at_s=3.0, seconds=3.0, version=2)
    summary = summarise([start(), *done(0, 0, 1, 2, 3), *again])
    assert summary.rounds == (CompletedRound(0, 2, 3.0, 3.0),)


def test_rounds_are_complete_without_a_lost_site_until_it_is_back(start) -> None:
    summary = summarise(
        [
            start(),
            *done(0, 0, 1, 2),
            SiteLost(at_s=2.0, site=3, detail="silent"),  # completes round 0
            *done(1, 0, 1, 2),
            SiteJoined(at_s=3.0, site=3, name="Perth", address="192.0.2.4:4000"),
            *done(2, 0, 1, 2),
            *done(3, 0, 1, 2, 3),
        ]
    )
    assert [r.round for r in summary.rounds] == [0, 1, 3]


def test_accuracy_is_the_mean_over_sites_when_the_last_is_done(start) -> None:
    summary = summarise(
        [
            start(),
            Evaluated(at_s=1.0, site=0, round=0, accuracy=0.5),
            Evaluated(at_s=3.0, site=0, round=1, accuracy=0.875),
            Evaluated(at_s=2.0, site=1, round=0, accuracy=0.75),
        ]
    )
    assert summary.accuracy == (AccuracyPoint(2.0, 0, 0.625), AccuracyPoint(3.0, 1, 0.875))


def test_looks_of_workers_that_are_not_at_the_same_update_are_in_order_of_time(start) -> None:
    went = [WorkerWent(at_s=0.0, site=site, update=1, samples=8) for site in (0, 1)]
    looks = [
        Evaluated(at_s=1.0, site=0, round=9, accuracy=0.75),
        Evaluated(at_s=2.0, site=1, round=3, accuracy=0.25, by_class=[0.5, None]),
        Evaluated(at_s=3.0, site=1, round=9, accuracy=0.5),
    ]
    summary = summarise([start(), *went, *looks])
    assert summary.accuracy == (
        AccuracyPoint(1.0, 9, 0.75),
        AccuracyPoint(2.0, 3, 0.25, (0.5, None)),
        AccuracyPoint(3.0, 9, 0.5),
    )
    assert summary.time_to_accuracy_s(0.7) == 1.0
    assert summary.final_accuracy == 0.5


def test_a_sites_accuracy_is_that_of_its_labels_as_last_seen(start) -> None:
    def seen(at_s: float, *by_class: float | None) -> Evaluated:
        return Evaluated(
            at_s=at_s, site=0, round=int(at_s), accuracy=0.5, by_class=list(by_class) or None
        )

    held = [
        LabelsHeld(at_s=0.0, site=3, samples=[10, 10]),
        LabelsHeld(at_s=0.0, site=1, samples=[10, 0]),
    ]
    last = [seen(1.0, 0.25, 0.5), seen(2.0, 0.5, 1.0)]
    assert summarise([start(), *held, *last]).site_accuracy == {1: 0.5, 3: 0.75}
    assert list(summarise([start(), *held, *last]).site_accuracy) == [1, 3]
    for less in ([*held], [*last], [*held, *last, seen(3.0)]):  # as in logs of earlier releases
        assert summarise([start(), *less]).site_accuracy == {}


def test_accuracy_of_a_class_is_the_mean_over_sites(start) -> None:
    both = [
        Evaluated(at_s=1.0, site=site, round=0, accuracy=0.5, by_class=[accuracy, None])
        for site, accuracy in enumerate((0.25, 0.75))
    ]
    assert summarise([start(), *both]).accuracy[-1].by_class == (0.5, None)


def test_accuracy_final_best_and_time_to_reach(run) -> None:
    summary = summarise(run(accuracy=(0.5, 0.92, 0.9)))
    assert summary.final_accuracy == 0.9
    assert summary.best_accuracy == 0.92
    assert summary.time_to_accuracy_s(0.9) == 6.0
    assert summary.time_to_accuracy_s(0.95) is None


def test_measured_against_predicted_and_limit(run) -> None:
    summary = summarise(run(predicted_s=2.5, limit_s=1.5))
    assert summary.measured_over_predicted == pytest.approx(3.0 / 2.5)
    assert summary.share_of_limit == pytest.approx(0.5)


def test_predictions_say_nothing_of_links_that_were_not_shaped(run) -> None:
    summary = summarise(run(shaped=False))
    assert summary.measured_over_predicted is None
    assert summary.share_of_limit is None


def test_bytes_of_each_link(run) -> None:
    summary = summarise(run())
    assert summary.link_bytes == {
        pair: 30_000_000 for site in (1, 2, 3) for pair in ((0, site), (site, 0))
    }


def test_compute_time_is_that_of_the_site_that_computes_longest(start) -> None:
    def step(round: int, site: int, compute_s: float) -> Event:
        return StepDone(at_s=1.0, site=site, round=round, loss=None, samples=8, compute_s=compute_s)

    summary = summarise([start(), step(0, 0, 1.0), step(0, 0, 1.0), step(0, 1, 1.5), step(1, 1, 3)])
    assert summary.compute_s == (2.0, 3.0)


def test_checksums_that_agree(run) -> None:
    summary = summarise(run())
    assert (summary.checksums_agree, summary.checked_rounds, summary.disputes) == (True, 3, ())


def test_checksums_that_differ_name_round_and_sites(start) -> None:
    summary = summarise(
        [
            start(),
            *done(0, 0, 1, 2, 3, checksum=7),
            *done(1, 0, 2, checksum=7),
            *done(1, 1, 3, checksum=8),  # a tie: site 0 is believed
            *done(2, 0, checksum=5),
            *done(2, 1, 2, 3, checksum=6),
        ]
    )
    assert summary.checksums_agree is False
    assert summary.disputes == (Dispute(1, (1, 3)), Dispute(2, (0,)))


def test_a_single_checksum_proves_nothing(start) -> None:
    summary = summarise([start(), *done(0, 0, checksum=7), *done(0, 1, 2, 3)])
    assert (summary.checksums_agree, summary.checked_rounds) == (None, 0)


def test_refused_messages_and_unknown_events_are_counted(start) -> None:
    refused = MessageRefused(at_s=1.0, site=0, sender=2, error="DuplicateMessage", detail="chunk 3")
    unknown = UnknownEvent(at_s=2.0, kind="eclipse", data="{}", reason="unknown kind")
    summary = summarise([start(), refused, unknown, refused])
    assert summary.refused == {"DuplicateMessage": 2}
    assert summary.unknown == {"eclipse": 1}


def test_the_error_that_ended_a_run(start) -> None:
    summary = summarise([start(), RunEnded(at_s=2.0, error="site Lima was lost")])
    assert (summary.ended, summary.error) == (True, "site Lima was lost")


def test_a_run_that_ended_early_on_purpose_has_a_reason_and_no_error(start) -> None:
    summary = summarise([start(), RunEnded(at_s=2.0, error=None, reason="time is up")])
    assert (summary.ended, summary.error, summary.reason) == (True, None, "time is up")


def test_faults_and_lost_sites_are_kept_in_order(start) -> None:
    cut = FaultInjected(at_s=1.0, fault="cut", detail="cut Oslo->Lima for 0.5 s")
    back = msgspec.structs.replace(cut, at_s=1.5, over=True)
    kill = FaultInjected(at_s=2.0, fault="kill", detail="kill Perth")
    lost = SiteLost(at_s=2.5, site=3, detail="Perth died")
    summary = summarise([start(), cut, back, kill, lost, RunEnded(at_s=2.5, error="Perth died")])
    assert summary.faults == (cut, back, kill)
    assert summary.lost == (lost,)


def test_a_round_that_only_the_lost_site_did_not_report_is_complete_when_it_is_lost(start) -> None:
    lost = SiteLost(at_s=2.0, site=3, detail="died")
    ended = RunEnded(at_s=2.0, error="died")
    events = [*done(1, 0, 1, 2, 3), *done(2, 0, 1, 2), *done(3, 0, 1), lost, ended]
    assert [r.round for r in summarise([start(), *events]).rounds] == [1, 2]


def test_there_is_no_share_of_a_limit_that_was_not_computed(run) -> None:
    summary = summarise(run(limit_s=None))
    assert summary.share_of_limit is None
    assert summary.measured_over_predicted is not None


def test_checksums_are_kept_of_rounds_that_ended_alike(start) -> None:
    summary = summarise(
        [
            start(),
            *done(1, 0, 1, checksum=7),
            *done(2, 0, checksum=7),
            *done(2, 1, checksum=8),
            *done(3, 0, checksum=9),  # no other to compare it with
        ]
    )
    assert summary.checksums == {1: 7}


def test_figures_are_measured_unless_their_run_was_simulated(run) -> None:
    local, simulated = summarise(run()), summarise(run(world="simulated"))
    assert (local.simulated, simulated.simulated) == (False, True)
    assert observed([local, local]) == "measured"
    assert observed([simulated]) == "simulated"
    assert observed([simulated, local]) == "measured or simulated"


def test_every_beginning_of_a_log_can_be_summed_up(run, packed: Plan) -> None:
    events = run(packed)
    for stop in range(1, len(events)):
        summary = summarise(events[:stop])
        assert not summary.ended
        assert len(summary.rounds) <= 3
    assert summarise(events[:1]).median_round_s is None
    assert summarise(events[:1]).median_interval_s is None
    assert summarise(events[:1]).interval_s == ()
    assert summarise(events[:1]).final_accuracy is None


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(ValueError, match="log is empty"):
        summarise([])


def test_a_log_without_its_first_event_is_refused(run) -> None:
    with pytest.raises(ValueError, match="not with run_started"):
        summarise(run()[1:])


def test_events_of_two_runs_are_refused(start) -> None:
    first: RunStarted = start()
    with pytest.raises(ValueError, match="second run_started"):
        summarise([first, msgspec.structs.replace(first, seed=8)])


def test_estimates_are_kept_link_by_link_in_order_of_time(start) -> None:
    def measured(at_s: float, source: int, target: int) -> LinkMeasured:
        return LinkMeasured(
            at_s=at_s,
            site=target,
            source=source,
            target=target,
            rate_bps=1e6,
            latency_s=None,
            chunks=4,
        )

    late, early, other = measured(2.0, 0, 1), measured(1.0, 0, 1), measured(1.5, 1, 0)
    summary = summarise([start(), late, other, early])
    assert summary.measured == {(0, 1): (early, late), (1, 0): (other,)}


def test_plans_issued_are_kept_with_why_and_what_changed(aware, packed: Plan) -> None:
    [issued] = summarise(aware()).plans
    assert (issued.at_s, issued.version) == (12.0, packed.version)
    assert issued.why == "Lima->Oslo fell from 40 to 25 Mbit/s"
    assert (issued.before_s, issued.after_s) == (3.2, 1.0)
    assert [(change.source, change.was_bps, change.now_bps) for change in issued.changed] == [
        (1, 40e6, 25e6)
    ]


def wait_of(start, *events: RoundDone) -> Wait:
    [wait] = summarise([start(), *events]).waits
    return wait


def pointing(site: int, to: int | None, *, at_s: float = 1.0, **changes) -> RoundDone:
    fields = {"round": 0, "version": 1, "seconds": 1.0, "checksum": None, "tree": site}
    return RoundDone(at_s=at_s, site=site, waited_for=to, **{**fields, **changes})


def test_waiting_is_followed_back_from_the_site_that_finished_last(start) -> None:
    wait = wait_of(
        start,
        pointing(0, 1),
        pointing(1, 3),
        pointing(2, 0, at_s=2.0),
        pointing(3, None),
    )
    assert wait == Wait(round=0, sites=(2, 0, 1, 3), tree=1)
    assert wait.links == ((0, 2), (1, 0), (3, 1))
    assert wait.began == (3, 1)


def test_waiting_that_comes_back_to_itself_is_followed_once(start) -> None:
    wait = wait_of(
        start, pointing(0, 1), pointing(1, 0), pointing(2, 0, at_s=2.0), pointing(3, None)
    )
    assert wait == Wait(round=0, sites=(2, 0, 1), tree=0)


def test_waiting_is_followed_to_the_root_and_the_child_whose_sum_came_last(start) -> None:
    # Perth got the mean from Oslo, the root; Oslo's last sum came from Lima, who got the mean too.
    wait = wait_of(start, pointing(0, 1), pointing(1, 0), pointing(2, 0), pointing(3, 0, at_s=2.0))
    assert wait.began == (1, 0)


def test_waiting_ends_at_a_site_that_has_but_an_earlier_attempt_s_result(start) -> None:
    again = {"version": 2}
    wait = wait_of(
        start,
        *(pointing(site, 3) for site in range(4)),
        pointing(2, 0, at_s=2.0, **again),
        pointing(1, None, **again),
        pointing(3, None, **again),
    )
    assert wait == Wait(round=0, sites=(2, 0), tree=2)


def test_a_round_whose_last_site_waited_for_no_neighbour_has_no_link_to_blame(start) -> None:
    events = [pointing(0, 1), pointing(1, None), pointing(2, 0), pointing(3, None, at_s=2.0)]
    wait = wait_of(start, *events)
    assert wait == Wait(round=0, sites=(3,), tree=None)
    assert wait.began is None


def test_there_are_no_waits_where_no_site_said_which_neighbour_it_waited_for(run) -> None:
    assert summarise(run()).waits == ()


def test_a_run_over_emulated_links_was_measured(run) -> None:
    emulated = summarise(run(world="emulated"))
    assert not emulated.simulated
    assert observed([emulated]) == "measured"
