"""NetStorm: its networks and systems, and what its rows compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch.overlay import internet2_9
from anabranch.plan import Fapt, Packed, Star
from anabranch.scheduler.deal import cuts_tensors
from anabranch_lab.run.scenario import load
from anabranch_lab.run.scenario.tasks import Exchange
from papers import EXPERIMENTS, Outcome
from papers.netstorm import _setting as setting
from papers.netstorm import fig14, fig19
from papers.netstorm import training as netstorm_training
from papers.netstorm.fig13 import cubic_bps, hub_and_spokes, one_connection_each
from papers.netstorm.tables import turns

from ..every import every
from .told import lab


def test_the_static_network_is_the_reference_and_the_dynamic_one_begins_as_it():
    static, dynamic = setting.reference(), setting.dynamic(3)
    assert static == internet2_9()
    assert [link.rate_bps for link in dynamic] == [link.rate_bps for link in static]
    traces = [link.trace for link in dynamic if link.trace is not None]
    assert len(traces) == 26
    assert traces[0].starts_s[:3] == (0.0, 180.0, 360.0)
    later = [rate for trace in traces for rate in trace.rates_bps[1:]]
    assert 20e6 <= min(later) < 25e6
    assert 150e6 < max(later) <= 155e6


def test_emulated_and_quick_all_but_latencies_is_a_tenth(tmp_path: Path):
    small = lab(tmp_path, quick=True, emulate=True)
    EXPERIMENTS["netstorm/fig18"].make(small)
    (std,) = [each for each in small.trials if each.labels["system"] == "std"]
    (aware,) = [each for each in small.trials if each.labels["system"] == "packed trees"]
    assert std.scenario.task == Exchange(elements=6_110_084)
    assert std.scenario.chunk_elements == 100_000
    assert std.scenario.awareness.probe_chunk_elements == 50_000
    assert std.scenario.awareness.update_time_s == 0.5
    assert aware.scenario.awareness.update_time_s == 0.1
    assert std.overlay.links[0].trace.starts_s[:2] == (0.0, 18.0)
    assert std.overlay.links[0].latency_s == setting.reference().links[0].latency_s


def test_drawn_networks_differ_and_follow_from_the_seed():
    first, second = setting.drawn(2, 7)
    assert first != second
    assert first.name != second.name
    assert setting.drawn(3, 7)[:2] == (first, second)
    assert every(link.trace is None for link in first)


def test_the_paper_measures_half_a_chunk():
    cut = setting.in_chunks_of(setting.PRO, 4096)
    assert cut.awareness is not None
    assert (cut.chunk_elements, cut.awareness.probe_chunk_elements) == (4096, 2048)
    assert setting.in_chunks_of(setting.PACKED, 4096).awareness == setting.PACKED.awareness


@pytest.mark.parametrize("sites", [5, 9, 15])
def test_networks_of_other_sizes_are_as_dense_as_the_papers(sites: int):
    assert len(fig19.sparse(sites, 0).links) == pytest.approx(26 / 9 * sites, abs=1)


# --- what connections do to a star


def test_a_connection_slows_with_its_path_as_cubics_response_says():
    # Per hop: round trip and loss grow alike, so the window stays, and the rate falls as 1 / hops.
    one, three = cubic_bps(1.0, 0.001), cubic_bps(3.0, 0.003)
    assert one == pytest.approx(8 * 1448 * 1.054 * 1000**0.75)
    assert three == pytest.approx(one / 3)


def test_at_short_round_trips_cubic_is_as_fast_as_reno():
    assert cubic_bps(0.001, 0.01) == pytest.approx(8 * 1448 * (1.5 / 0.01) ** 0.5 / 0.001)


def test_links_are_no_faster_than_one_connection_and_else_as_they_were():
    overlay, cap_bps = internet2_9(), cubic_bps(0.06, 0.0002)
    for before, after in zip(overlay, one_connection_each(overlay), strict=True):
        assert after.rate_bps == min(before.rate_bps, cap_bps)
        assert (after.latency_s, after.loss) == (before.latency_s, before.loss)


def test_a_hub_sees_each_site_over_one_long_connection():
    overlay = internet2_9()
    spokes = hub_and_spokes(overlay, overlay.index("dc1"))
    assert len(spokes.links) == 16
    far = spokes.link(overlay.index("dc9"), overlay.index("dc1"))
    assert far is not None
    hops = round(far.latency_s / 0.03)
    assert hops == 4
    assert far.loss == pytest.approx(1 - (1 - 0.0002) ** hops)
    assert far.rate_bps == pytest.approx(cubic_bps(2 * far.latency_s, far.loss))
    near = spokes.link(overlay.index("dc3"), overlay.index("dc1"))
    assert near is not None
    assert near.rate_bps == pytest.approx(cubic_bps(0.06, 0.0002))


def test_the_systems_are_the_papers():
    assert setting.MXNET.route == Star()
    assert setting.PRO.route == Fapt(shares="first", quality="leaf-to-root")
    assert every(
        each.cuts_tensors
        for each in (setting.MXNET, setting.MLNET, setting.TSENGINE, setting.LITE, setting.PRO)
    )
    assert not setting.OUR_PRO.cuts_tensors
    assert setting.PACKED.route == Packed()
    assert setting.LITE.awareness is None
    assert setting.STD.auxiliary is None
    assert setting.PRO.awareness == setting.STD.awareness == setting.PAPERS_AWARENESS
    assert {each.chunk_elements for each in (setting.MXNET, setting.LITE, setting.PRO)} == {10**6}


@pytest.mark.parametrize("system", [setting.LITE, setting.STD, setting.PRO], ids=lambda s: s.name)
def test_the_papers_stages_are_those_of_the_examples(system: setting.System):
    path = Path(__file__).parents[2] / f"examples/scenarios/netstorm-{system.name}.toml"
    example, _ = load(path)
    assert example.routes == (system.route,)
    assert (example.awareness, example.auxiliary) == (system.awareness, system.auxiliary)
    assert example.chunk_elements == system.chunk_elements
    assert example.adaptive is None
    assert cuts_tensors(example.deal) == system.cuts_tensors


def drawn(times_s: Sequence[float], **labels: str) -> list[Outcome]:
    """Return runs of four rounds, each of a draw."""
    return [
        Outcome({**labels, "draw": draw}, "a.toml", 4, 4 * each, each, 0)
        for draw, each in enumerate(times_s)
    ]


def test_a_ratio_is_of_all_rounds_and_then_of_the_least_and_the_most_of_its_draws():
    slow, fast = drawn([60.0, 30.0, 90.0]), drawn([20.0, 15.0, 25.0])
    assert setting.ratio(slow, fast, setting.times) == "3.0x, 2.0x to 3.6x"
    assert setting.ratio(slow[:1], fast[:1], setting.times) == "3.0x"
    assert setting.over(slow, fast) == "3.0x, 2.0x to 3.6x (20.0 s)"


def test_of_static_networks_the_median_counts_and_a_doubtful_order_says_how_often_it_holds():
    slow, fast = (
        drawn(times_s, network="static") for times_s in ([60.0, 30.0, 90.0], [20.0, 40.0, 60.0])
    )
    assert setting.ratio(slow, fast, setting.times) == "1.5x, 0.8x to 3.0x, faster in 2 of 3"
    assert setting.ratio(fast, slow, setting.gain) == "-33 %, -67 % to +33 %, faster in 1 of 3"


def test_roots_of_static_networks_are_ranked_for_each_network():
    runs = [
        outcome
        for root, times_s in {"a": (9.0, 1.0), "b": (2.0, 2.0), "c": (6.0, 6.0)}.items()
        for outcome in drawn(times_s, root=root, network="static")
    ]
    found = {
        rank: [each.labels["root"] for each in of] for rank, of in setting.ranked(runs).items()
    }
    assert found == {"best": ["b", "a"], "median": ["c", "b"], "worst": ["a", "c"]}


def test_roots_are_ranked_by_all_draws_together():
    runs = [
        outcome
        for root, times_s in {"a": (9.0, 1.0), "b": (2.0, 2.0), "c": (6.0, 6.0)}.items()
        for outcome in drawn(times_s, root=root, network="dynamic")
    ]
    found = {rank: each[0].labels["root"] for rank, each in setting.ranked(runs).items()}
    assert found == {"best": "b", "median": "a", "worst": "c"}


def test_a_graph_that_has_fallen_apart_takes_algorithm_3_more_turns_than_the_paper_says():
    drawn_networks = setting.drawn(20, 0)
    assert max(turns(each, undirected=True) for each in drawn_networks) > 13 / 8
    assert every(turns(each, undirected=False) <= 26 / 8 for each in drawn_networks)


def test_accuracies_are_compared_after_equally_many_rounds():
    quick, slow = (
        Outcome({}, "a.toml", 4, 4.0, 1.0, 0, curve=curve)
        for curve in (
            ((1.0, 0.2), (2.0, 0.4), (3.0, 0.9), (3.5, 0.7)),
            ((5.0, 0.2), (9.0, 0.5), (9.5, 0.1)),
        )
    )
    assert netstorm_training.most_apart([quick, slow]) == pytest.approx(0.1)


def test_links_drawn_once_change_both_ways_alike():
    changing = setting.dynamic(3)
    once = fig14.drawn_once(changing)
    for before, after in zip(changing.links, once.links, strict=True):
        back = once.link(after.target, after.source)
        assert back is not None
        assert (after.rate_bps, after.trace) == (back.rate_bps, back.trace)
        if before.source < before.target:
            assert (after.rate_bps, after.trace) == (before.rate_bps, before.trace)
