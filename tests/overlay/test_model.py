"""What an overlay refuses, and what it answers."""

from dataclasses import replace

import numpy as np
import pytest

from anabranch.overlay import Link, Overlay, OverlayError, Site, Trace

A, B, C = Site("a"), Site("b"), Site("c")
THERE, BACK = Link(0, 1, 2e6, 0.03, 0.5), Link(1, 0, 1e6)


def pair(**changes: object) -> Overlay:
    return replace(Overlay("pair", (A, B), (THERE, BACK)), **changes)


def test_a_trace_holds_each_rate_from_its_start_to_the_next():
    trace = Trace((0.0, 10.0, 20.0), (1.0, 2.0, 3.0))
    assert [trace.rate_bps(t) for t in (0.0, 9.999, 10.0, 19.0, 20.0, 1e9)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("starts_s", "rates_bps", "complaint"),
    [
        ((), (), "0 start times and 0 rates; give the same number"),
        ((0.0, 1.0), (1.0,), "2 start times and 1 rates"),
        ((5.0,), (1.0,), "starts at 5 s; say its rate from 0 s on"),
        ((float("nan"),), (1.0,), "starts at nan s"),
        ((0.0, 9.0, 9.0), (1.0, 2.0, 3.0), "start 9 s after 9 s"),
        ((0.0, float("inf")), (1.0, 2.0), "start inf s after 0 s"),
        ((0.0, float("nan")), (1.0, 2.0), "start nan s after 0 s"),
        ((0.0,), (0.0,), "rate 0 bit/s, which must be within 0.001 and"),
        ((0.0,), (-1.0,), "rate -1 bit/s"),
        ((0.0,), (float("inf"),), "rate inf bit/s"),
        ((0.0,), (float("nan"),), "rate nan bit/s"),
    ],
)
def test_a_trace_refuses_what_is_no_course_of_rates(starts_s, rates_bps, complaint):
    with pytest.raises(OverlayError, match=complaint):
        Trace(starts_s, rates_bps)


@pytest.mark.parametrize(
    ("sites", "complaint"),
    [
        ((), "overlay 'pair' has no site; give it at least one"),
        ((A, Site("")), "a site has an empty name"),
        ((A, A), "site 'a' is given twice"),
        ((A, Site("b", 10.0)), "site 'b' has half a position"),
        ((A, Site("b", None, 10.0)), "site 'b' has half a position"),
        ((A, Site("b", 91.0, 0.0)), "site 'b' is at latitude 91, longitude 0; give degrees"),
        ((A, Site("b", 0.0, -181.0)), "longitude -181"),
        ((A, Site("b", float("nan"), 0.0)), "latitude nan"),
        ((A, Site("b", uplink_bps=0.0)), "site 'b' has uplink 0 bit/s, which must be within"),
        ((A, Site("b", uplink_bps=float("inf"))), "uplink inf bit/s.*leave it out where only"),
        ((A, Site("b", downlink_bps=-5.0)), "site 'b' has downlink -5 bit/s"),
        ((A, Site("b", downlink_bps=float("nan"))), "downlink nan bit/s"),
    ],
)
def test_sites_that_cannot_be_told_apart_placed_or_joined_are_refused(sites, complaint):
    with pytest.raises(OverlayError, match=complaint):
        pair(sites=sites)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"target": 2}, r"link 0->2 names a site outside 0\.\.1"),
        ({"source": -1}, r"link -1->1 names a site outside 0\.\.1"),
        ({"target": 0}, "link a->a joins a site to itself; leave it out"),
        ({"rate_bps": 0.0}, "link a->b has rate 0 bit/s.*leave the link out to model an outage"),
        ({"rate_bps": -5.0}, "link a->b has rate -5 bit/s"),
        ({"rate_bps": float("nan")}, "link a->b has rate nan bit/s"),
        ({"rate_bps": float("inf")}, "link a->b has rate inf bit/s, which must be within"),
        ({"latency_s": -0.1}, "link a->b has latency -0.1 s"),
        ({"latency_s": float("inf")}, "link a->b has latency inf s"),
        ({"latency_drift_s": -0.1}, "link a->b has latency drift -0.1 s, which must be finite"),
        ({"latency_drift_s": float("inf")}, "link a->b has latency drift inf s"),
        ({"latency_drift_s": float("nan")}, "link a->b has latency drift nan s"),
        ({"loss": 1.0}, r"link a->b has loss 1, which must be in \[0, 1\); 0.0002 means 0.02 %"),
        ({"loss": -0.1}, "link a->b has loss -0.1"),
        ({"loss": float("nan")}, "link a->b has loss nan"),
        ({"trace": Trace((0.0,), (7.0,))}, "rate 2e.06 bit/s but a trace that starts at 7"),
    ],
)
def test_a_link_that_cannot_be_is_refused_by_name(changes, complaint):
    with pytest.raises(OverlayError, match=complaint):
        pair(links=(replace(THERE, **changes), BACK))


def test_a_link_given_twice_is_refused():
    with pytest.raises(OverlayError, match="link a->b is given twice; keep one"):
        pair(links=(THERE, BACK, THERE))


def test_sites_that_cannot_be_reached_are_named():
    with pytest.raises(OverlayError, match="disconnected: c cannot be reached from a; add a link"):
        pair(sites=(A, B, C), links=(THERE, BACK, Link(2, 0, 1.0)))


def test_sites_that_can_only_be_reached_are_named():
    with pytest.raises(OverlayError, match="disconnected: b cannot be heard by a"):
        pair(links=(THERE,))


def test_a_long_list_of_unreachable_sites_is_cut():
    with pytest.raises(OverlayError, match="b, s0, s1, s2, s3 and 4 more cannot be reached"):
        pair(sites=(A, B, *(Site(f"s{i}") for i in range(8))), links=())


def test_one_site_alone_is_an_overlay():
    assert Overlay("alone", (A,), ()).size == 1


def test_links_and_neighbours_are_found_by_index():
    overlay = pair(sites=(A, B, C), links=(THERE, BACK, Link(0, 2, 1.0), Link(2, 1, 1.0)))
    assert overlay.targets == ((1, 2), (0,), (1,))
    assert overlay.sources == ((1,), (0, 2), (0,))
    assert overlay.link(0, 1) is THERE
    assert overlay.link(1, 2) is None
    assert list(overlay) == list(overlay.links)


def test_a_site_is_found_by_name_and_an_unknown_one_names_the_nearest():
    overlay = pair(sites=(Site("new-york"), Site("seattle")))
    assert overlay.index("seattle") == 1
    with pytest.raises(OverlayError, match="no site 'seatle' in overlay 'pair'; did you mean 'sea"):
        overlay.index("seatle")
    with pytest.raises(OverlayError, match=r"no site 'zz'.*see its sites"):
        overlay.index("zz")


def test_goodput_is_the_rate_less_what_is_sent_again():
    np.testing.assert_allclose(pair().goodput_matrix_bps(), [[0, 1e6], [1e6, 0]])


def test_at_a_moment_traced_links_hold_their_rate_of_that_moment():
    traced = replace(THERE, trace=Trace((0.0, 10.0), (2e6, 5e6)))
    then = pair(links=(traced, BACK)).at(12.0)
    assert then.links == (replace(THERE, rate_bps=5e6), BACK)


def test_at_a_moment_sites_keep_their_ports_and_links_their_drift():
    drifting = replace(THERE, trace=Trace((0.0, 10.0), (2e6, 5e6)), latency_drift_s=0.01)
    overlay = pair(sites=(Site("a", uplink_bps=1e6, downlink_bps=2e6), B), links=(drifting, BACK))
    assert overlay.at(12.0).sites == overlay.sites
    assert overlay.at(12.0).links[0] == replace(drifting, rate_bps=5e6, trace=None)


def test_equal_overlays_are_equal_and_hash_alike():
    assert pair() == pair()
    assert hash(pair()) == hash(pair())
