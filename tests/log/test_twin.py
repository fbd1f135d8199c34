from __future__ import annotations

import pytest

from anabranch.log import LinkBytes, RoundDone, RunSummary, summarise
from anabranch.plan import Plan
from anabranch_lab.reports import AGREEMENT, TwinRow, compare, median_error, worst_row


@pytest.fixture
def twin(run):
    """Return a function that compares two runs with these round times."""

    def make(simulated_s=(2.0, 4.0, 3.0), measured_s=(2.0, 4.0, 3.0), **changes) -> TwinRow:
        return compare(
            summarise(run(round_s=simulated_s, world="simulated", started_at=None, **changes)),
            summarise(run(round_s=measured_s, **changes)),
        )

    return make


def test_the_error_is_how_far_measured_is_from_simulated_by_their_medians(twin) -> None:
    row = twin((2.0, 2.0, 9.0), (1.0, 2.2, 2.2))
    assert (row.simulated_s, row.measured_s) == (2.0, 2.2)
    assert row.measured_over_simulated == pytest.approx(1.1)
    assert row.error == pytest.approx(0.1)


def test_what_a_world_does_between_exchanges_counts(run) -> None:
    simulated = summarise(run(round_s=(2.0, 4.0, 3.0), idle_s=1.0, world="simulated"))
    row = compare(simulated, summarise(run(round_s=(2.0, 4.0, 3.0), idle_s=3.0)))
    assert (row.simulated_s, row.measured_s) == (4.0, 6.0)
    assert row.error == pytest.approx(0.5)
    same = compare(simulated, summarise(run(round_s=(1.0, 3.0, 2.0), idle_s=2.0)))
    assert (same.error, same.agrees) == (0.0, True)  # the same in other shares


def test_faster_than_simulated_is_as_much_an_error_as_slower(twin) -> None:
    assert twin((2.0,), (1.5,)).error == twin((2.0,), (2.5,)).error == 0.25


@pytest.mark.parametrize(("measured_s", "agrees"), [(2.0, True), (2.19, True), (1.7, False)])
def test_the_worlds_agree_up_to_a_tenth(twin, measured_s: float, agrees: bool) -> None:
    assert AGREEMENT == 0.1
    assert twin((2.0,), (measured_s,)).agrees is agrees


def test_there_is_no_error_without_a_round_in_both_worlds(run) -> None:
    row = compare(summarise(run(round_s=(), world="simulated")), summarise(run()))
    assert (row.measured_over_simulated, row.error, row.agrees) == (None, None, None)
    assert (row.simulated_rounds, row.measured_rounds) == (0, 3)


def test_equal_payloads_agree_link_by_link(twin) -> None:
    row = twin()
    assert row.bytes_agree is True
    assert row.simulated_bytes == row.measured_bytes == 6 * 30_000_000


def test_links_that_did_not_carry_the_same_are_named(run) -> None:
    more = LinkBytes(at_s=9.0, source=2, target=3, seconds=1.0, payload_bytes=7)
    row = compare(summarise(run(world="simulated")), summarise([*run()[:-1], more]))
    assert row.bytes_agree is False
    assert row.differing_links == {(2, 3): (0, 7)}


def test_payload_that_only_moved_to_another_link_differs(run) -> None:
    def ran(source: int, **changes: object) -> RunSummary:
        sent = LinkBytes(at_s=9.0, source=source, target=3, seconds=1.0, payload_bytes=7)
        return summarise([*run(**changes)[:-1], sent])

    row = compare(ran(1, world="simulated"), ran(2))
    assert row.simulated_bytes == row.measured_bytes
    assert row.differing_links == {(1, 3): (7, 0), (2, 3): (0, 7)}


def test_payload_that_was_not_recorded_neither_agrees_nor_differs(run) -> None:
    silent = [event for event in run() if not isinstance(event, LinkBytes)]
    assert compare(summarise(run(world="simulated")), summarise(silent)).bytes_agree is None


def test_checksums_agree_where_all_sites_do_in_both_worlds(run) -> None:
    simulated = summarise(run(world="simulated"))
    odd = RoundDone(at_s=9.0, site=2, round=1, version=1, seconds=4.0, checksum=99)
    assert compare(simulated, summarise(run())).checksums_agree is True
    assert compare(simulated, summarise([*run()[:-1], odd])).checksums_agree is False
    assert compare(simulated, summarise(run()[:1])).checksums_agree is None


def test_results_are_the_same_where_each_round_has_one_checksum_in_both_worlds(run) -> None:
    simulated = summarise(run(world="simulated"))
    others = [
        RoundDone(at_s=9.0, site=site, round=1, version=1, seconds=4.0, checksum=99)
        for site in range(4)
    ]
    assert compare(simulated, summarise(run())).same_results is True
    row = compare(simulated, summarise([*run()[:-1], *others]))
    assert (row.checksums_agree, row.same_results) == (True, False)
    assert compare(simulated, summarise(run()[:1])).same_results is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "seed: 7 and 8"),
        ({"buffer_bytes": 8}, "buffer_bytes"),
        ({"plan_json": "{}"}, "differ in plan_json; compare"),
        ({"shaped": False}, "did not hold its links"),
        ({"world": "simulated"}, "simulated and simulated"),
    ],
)
def test_runs_that_are_not_one_scenario_in_two_worlds_are_refused(
    run, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compare(summarise(run(world="simulated")), summarise(run(**change)))


def test_a_route_compares_with_no_other_route(run, packed: Plan) -> None:
    with pytest.raises(ValueError, match="plan_json"):
        compare(summarise(run(world="simulated")), summarise(run(packed)))


def test_the_simulated_run_comes_first(run) -> None:
    with pytest.raises(ValueError, match="in this order, and these are local and simulated"):
        compare(summarise(run()), summarise(run(world="simulated")))


def test_the_worst_route_and_the_median_error_are_over_routes_with_an_error(twin) -> None:
    rows = [
        twin((2.0,), (2.5,), label="a"),
        twin((2.0,), (1.0,), label="b"),
        twin((), (1.0,), label="none"),
        twin((2.0,), (2.0,), label="c"),
    ]
    worst = worst_row(rows)
    assert worst is not None
    assert worst.label == "b"
    assert median_error(rows) == 0.25


def test_without_a_route_there_is_neither_a_worst_one_nor_a_median() -> None:
    assert worst_row([]) is None
    assert median_error([]) is None
