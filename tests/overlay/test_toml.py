"""Our own format: what it reads, what it writes, what it refuses and in which words."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.overlay import (
    Link,
    Overlay,
    OverlayError,
    Site,
    Trace,
    dumps,
    internet2_9,
    loads,
    random_geographic,
    redraw,
)

HEAD = """
name = "pair"
[[site]]
name = "new-york"
[[site]]
name = "seattle"
"""
LINK = """
[[link]]
from = "new-york"
to = "seattle"
back_rate_bps = 1e6
latency_s = 0.03
"""
DYNAMICS = """
[dynamics]
period_s = 180
low_bps = 20e6
high_bps = 155e6
duration_s = 540
seed = 7
"""
GOOD = HEAD + LINK + "rate_bps = 2e6\n"


def test_a_link_and_its_way_back_share_latency_and_loss():
    overlay = loads(GOOD + "loss = 0.25\n")
    assert overlay == Overlay(
        "pair",
        (Site("new-york"), Site("seattle")),
        (Link(0, 1, 2e6, 0.03, 0.25), Link(1, 0, 1e6, 0.03, 0.25)),
    )


def test_a_link_without_a_back_rate_is_one_way():
    one_way = LINK.replace("back_rate_bps", "rate_bps")
    back = one_way.replace("to =", "TO =").replace("from =", "to =").replace("TO =", "from =")
    assert loads(HEAD + one_way + back.replace("1e6", "3e6")).links == (
        Link(0, 1, 1e6, 0.03),
        Link(1, 0, 3e6, 0.03),
    )


def test_integers_serve_where_numbers_are_meant():
    text = GOOD.replace("2e6", "2_000_000").replace("1e6", "1000000").replace("0.03", "1")
    link = loads(text).links[0]
    assert (link.rate_bps, link.latency_s) == (2e6, 1.0)
    assert isinstance(link.rate_bps, float)


def test_positions_are_read():
    text = GOOD.replace('"seattle"\n', '"seattle"\nlatitude_deg = 47.6\nlongitude_deg = -122\n', 1)
    assert loads(text).sites[1] == Site("seattle", 47.6, -122.0)


def test_ports_are_read():
    text = GOOD.replace('"seattle"\n', '"seattle"\nuplink_bps = 25e6\ndownlink_bps = 50e6\n', 1)
    assert loads(text).sites == (
        Site("new-york"),
        Site("seattle", uplink_bps=25e6, downlink_bps=50e6),
    )


def test_defaults_serve_sites_that_do_not_say_their_ports():
    text = GOOD.replace('"seattle"\n', '"seattle"\nuplink_bps = 25e6\n', 1)
    assert loads(text + "[defaults]\nuplink_bps = 100e6\ndownlink_bps = 200e6\n").sites == (
        Site("new-york", uplink_bps=100e6, downlink_bps=200e6),
        Site("seattle", uplink_bps=25e6, downlink_bps=200e6),
    )


def test_a_link_and_its_way_back_drift_alike_each_by_itself():
    assert [link.latency_drift_s for link in loads(GOOD + "latency_drift_s = 0.5\n")] == [0.5, 0.5]


def test_defaults_serve_links_that_do_not_say_their_drift():
    defaults = "[defaults]\nlatency_drift_s = 0.25\n"
    assert {link.latency_drift_s for link in loads(GOOD + defaults)} == {0.25}
    own = loads(GOOD + "latency_drift_s = 0\n" + defaults)
    assert own == loads(GOOD)


def test_traces_are_read_each_way_and_give_the_rate_at_the_start():
    text = GOOD.replace("back_rate_bps = 1e6", "back_trace = {starts_s = [0], rates_bps = [3]}")
    text = text.replace("\nrate_bps = 2e6", "\ntrace = {starts_s = [0, 180], rates_bps = [2e6, 5]}")
    there, back = loads(text).links
    assert (there.rate_bps, there.trace) == (2e6, Trace((0.0, 180.0), (2e6, 5.0)))
    assert (back.rate_bps, back.trace) == (3.0, Trace((0.0,), (3.0,)))


def test_defaults_serve_links_that_do_not_say():
    bare = LINK.replace("latency_s = 0.03\n", "")
    overlay = loads(HEAD + "[defaults]\nlatency_s = 0.5\nloss = 0.125\nrate_bps = 9\n" + bare)
    assert overlay.links == (Link(0, 1, 9.0, 0.5, 0.125), Link(1, 0, 1e6, 0.5, 0.125))


def test_a_link_that_says_it_overrides_the_defaults():
    text = GOOD + "loss = 0\n[defaults]\nlatency_s = 0.5\nloss = 0.125\nrate_bps = 9\n"
    assert loads(text) == loads(GOOD)


def test_dynamics_redraws_every_rate():
    assert loads(GOOD + DYNAMICS) == redraw(
        loads(GOOD), period_s=180, low_bps=20e6, high_bps=155e6, duration_s=540, seed=7
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        # syntax
        (("rate_bps = 2e6", "rate_bps ="), r"a.toml: not TOML: .*line 12.*; mend that line"),
        (("seattle", 'sea"ttle'), r"a.toml: not TOML: .*line 6"),
        (("rate_bps = 2e6", "rate_bps = [1,"), "not TOML: .*line 12, the last"),
        # unknown keys
        (("\nrate_bps", "\nrate_bp"), r"link\[0\].rate_bp: no such key; did you mean 'rate_bps'"),
        (("\nrate_bps", "\nzz"), r"link\[0\].zz: no such key; the keys here are from, to, rate_b"),
        (("[[link]]", "[[links]]"), "a.toml: links: no such key; did you mean 'link'"),
        (('name = "pair"', 'nme = "pair"'), "a.toml: nme: no such key; did you mean 'name'"),
        (('name = "seattle"', 'nam = "s"'), r"site\[1\].nam: no such key; did you mean 'name'"),
        (("rate_bps = 2e6", "trace.start_s = [0]"), r"link\[0\].trace.start_s: no .*'starts_s'"),
        (("rate_bps = 2e6", "[defaults]\nlatency = 1"), "defaults.latency: no .*'latency_s'"),
        (("rate_bps = 2e6", "[dynamics]\nperiod = 1"), "dynamics.period: no .*'period_s'"),
        (("\nrate_bps", "\n'`x` - at `$.a`'"), r"link\[0\].`x` - at `\$.a`: no such key"),
        (("\nrate_bps", "\n''"), r"link\[0\].: no such key"),
        # missing keys
        (('name = "pair"', ""), "a.toml: name: this key is required; add it"),
        (('from = "new-york"', ""), r"link\[0\].from: this key is required"),
        (("rate_bps = 2e6", "trace.starts_s = [0]"), r"link\[0\].trace.rates_bps: this key is"),
        (("\nrate_bps = 2e6", ""), r"link\[0\].rate_bps: new-york->seattle has no rate; give"),
        (("latency_s = 0.03", ""), r"link\[0\].latency_s: new-york->seattle has no latency; give"),
        (("rate_bps = 2e6", "rate_bps = 2e6\n[dynamics]\nseed = 1"), "dynamics.period_s: this key"),
        # types
        (("2e6", '"fast"'), r"link\[0\].rate_bps: must be a number, not 'fast'"),
        (("2e6", "true"), r"link\[0\].rate_bps: must be a number, not True"),
        (("2e6", "[1]"), r"link\[0\].rate_bps: must be a number, not \[1\]"),
        (("2e6", "1979-05-27"), r"link\[0\].rate_bps: must be a number, not .*date"),
        (('"pair"', "1"), "a.toml: name: must be a string, not 1"),
        (("[[link]]", "[link]"), "a.toml: link: must be an array, not {"),
        (('name = "pair"', 'name = "pair"\ndefaults = 3'), "defaults: must be a table, not 3"),
        # ranges
        (("2e6", "0"), r"link\[0\].rate_bps: must be a number > 0, not 0"),
        (("2e6", "-3.5"), r"link\[0\].rate_bps: must be a number > 0, not -3.5"),
        (("2e6", "nan"), r"link\[0\].rate_bps: must be a finite number, not nan"),
        (("2e6", "inf"), r"link\[0\].rate_bps: must be a finite number, not inf"),
        (("2e6", "9" * 400), r"a.toml: link\[0\].rate_bps: number out of range; change it"),
        (("2e6", "1e999"), r"link\[0\].rate_bps: must be a finite number, not inf"),
        (("1e6", "-1"), r"link\[0\].back_rate_bps: must be a number > 0, not -1"),
        (("0.03", "-0.03"), r"link\[0\].latency_s: must be a number >= 0, not -0.03"),
        (("0.03", "nan"), r"link\[0\].latency_s: must be a finite number, not nan"),
        (("0.03", "0.03\nloss = 1"), r"link\[0\].loss: must be a number < 1, not 1"),
        (("0.03", "0.03\nloss = nan"), r"link\[0\].loss: must be a finite number, not nan"),
        (("0.03", "0.03\nlatency_drift_s = -1"), r"latency_drift_s: must be a number >= 0, not -1"),
        (
            ('name = "seattle"', 'name = "s"\nuplink_bps = 0'),
            r"site\[1\].uplink_bps: must be a numb",
        ),
        (("2e6", "2e6\n[defaults]\ndownlink_bps = inf"), "defaults.downlink_bps: must be a finite"),
        (('"seattle"\n[[link', '""\n[[link'), r"site\[1\].name: must be a string of length >= 1"),
        (
            ("rate_bps = 2e6", "trace = {starts_s = [0, 1], rates_bps = [1, 0]}"),
            r"link\[0\].trace.rates_bps\[1\]: must be a number > 0, not 0",
        ),
        (
            ("rate_bps = 2e6", "trace = {starts_s = [0, 0], rates_bps = [1, 1]}"),
            r"a.toml: link\[0\].trace: a trace has start 0 s after 0 s",
        ),
        (
            ("rate_bps = 2e6", "rate_bps = 1\nback_trace = {starts_s = [0], rates_bps = [1]}"),
            r"link\[0\].back_rate_bps: there is a back_trace too, .*keep one",
        ),
        # what holds the parts together
        (('to = "seattle"', 'to = "seatle"'), r"link\[0\].to: no site 'seatle'; did you mean 'sea"),
        (('from = "new-york"', 'from = "zz"'), r"link\[0\].from: no site 'zz'; the sites are new-"),
        (
            ('to = "seattle"', 'to = "new-york"'),
            r"a.toml: link\[0\]: joins new-york to itself; leave it out",
        ),
        (("back_rate_bps = 1e6", ""), "a.toml: overlay 'pair' is disconnected: seattle cannot be"),
        (('name = "seattle"', 'name = "seattle"\nlatitude_deg = 1'), "has half a position"),
    ],
)
def test_an_error_names_the_file_the_key_and_the_fix(change, complaint):
    old, new = change
    assert old in GOOD.replace("\n\n", "\n")
    with pytest.raises(OverlayError, match=complaint) as caught:
        loads(GOOD.replace("\n\n", "\n").replace(old, new), where="a.toml")
    assert str(caught.value).startswith("a.toml: ")


def test_a_text_read_twice_names_the_file_of_each_reading():
    for where in ("a.toml", "b.toml"):
        with pytest.raises(OverlayError, match=f"^{where}: overlay 'x' has no site"):
            loads('name = "x"\nsite = []', where=where)
    assert loads(GOOD, where="a.toml") is loads(GOOD, where="b.toml")


def test_a_link_given_twice_names_both_places():
    again = LINK.replace("back_rate_bps", "rate_bps").replace("to =", "TO =")
    again = again.replace("from =", "to =").replace("TO =", "from =")
    with pytest.raises(OverlayError, match=r"link\[1\]: link seattle->new-york is given twice, fi"):
        loads(GOOD + again)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("180", "0", "dynamics.period_s: must be a number > 0, not 0"),
        ("540", "inf", "dynamics.duration_s: must be a finite number, not inf"),
        ("20e6", "200e6", r"dynamics: cannot draw rates from 2e\+08 to 1.55e\+08 bit/s; give"),
        ("seed = 7", "seed = -7", "dynamics.seed: must be an integer >= 0, not -7"),
        ("seed = 7", "seed = 0.5", "dynamics.seed: must be an integer, not 0.5"),
    ],
)
def test_dynamics_out_of_range_are_refused(old, new, complaint):
    with pytest.raises(OverlayError, match=f"<string>: {complaint}"):
        loads(GOOD + DYNAMICS.replace(old, new))


def test_a_trace_beside_dynamics_is_refused():
    traced = GOOD.replace("\nrate_bps = 2e6", "\ntrace = {starts_s = [0], rates_bps = [1]}")
    with pytest.raises(OverlayError, match=r"link\[0\].trace: \[dynamics\] already says how every"):
        loads(traced + DYNAMICS)


def test_a_document_with_no_site_is_refused():
    with pytest.raises(OverlayError, match="<string>: overlay 'x' has no site"):
        loads('name = "x"\nsite = []')


def test_a_site_given_twice_is_refused():
    with pytest.raises(OverlayError, match="<string>: site 'a' is given twice; site names must be"):
        loads('name = "x"\nsite = [{name = "a"}, {name = "a"}]')


def test_a_pair_of_links_is_written_as_one():
    assert dumps(internet2_9()).count("[[link]]") == 13


def test_links_that_differ_in_more_than_rate_are_written_apart():
    overlay = internet2_9()
    first, *others = overlay.links
    for change in ({"loss": 0.5}, {"latency_s": 0.5}, {"latency_drift_s": 0.5}):
        changed = replace(overlay, links=(replace(first, **change), *others))
        assert dumps(changed).count("[[link]]") == 14
        assert loads(dumps(changed)) == changed


def test_numpy_numbers_are_written_as_numbers():
    overlay = Overlay(
        "numpy",
        (Site("a", np.float64(1.5), np.float64(2)), Site("b")),
        (Link(0, 1, np.float64(3), np.float64(0.1)), Link(1, 0, np.float32(5))),
    )
    assert loads(dumps(overlay)) == overlay


def test_a_name_that_utf8_cannot_hold_is_refused():
    with pytest.raises(OverlayError, match="is not valid Unicode; rename it"):
        dumps(Overlay("\ud800", (Site("a"),), ()))


def test_a_large_changing_overlay_makes_the_round_trip():
    overlay = redraw(
        random_geographic(1000, 0),
        period_s=180,
        low_bps=20e6,
        high_bps=155e6,
        duration_s=3600,
        seed=0,
    )
    assert loads(dumps(overlay)) == overlay


POSITIVE = st.floats(1e-3, 1e21)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    later_s = draw(st.lists(POSITIVE, max_size=4, unique=True).map(sorted))
    rates_bps = st.lists(POSITIVE, min_size=len(later_s) + 1, max_size=len(later_s) + 1)
    return Trace((0.0, *later_s), tuple(draw(rates_bps)))


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    names = draw(st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True))
    degrees = st.tuples(st.floats(-90, 90), st.floats(-180, 180))
    ports = st.none() | POSITIVE
    sites = [
        Site(name, *(draw(st.none() | degrees) or (None, None)), draw(ports), draw(ports))
        for name in names
    ]
    n = len(sites)
    everywhere = [(a, b) for a in range(n) for b in range(n) if a != b]
    ring = {(i, (i + 1) % n) for i in range(n) if n > 1}
    pairs = draw(st.sets(st.sampled_from(everywhere)) if everywhere else st.just(set()))
    links = []
    for source, target in draw(st.permutations(sorted(pairs | ring))):
        trace = draw(st.none() | traces())
        rate_bps = draw(POSITIVE) if trace is None else trace.rates_bps[0]
        latency_s = draw(st.sampled_from([0.0, 0.03]) | st.floats(0, allow_infinity=False))
        loss = draw(st.sampled_from([0.0, 0.0002]) | st.floats(0, 1, exclude_max=True))
        drift_s = draw(st.sampled_from([0.0, 0.5]) | st.floats(0, allow_infinity=False))
        links.append(Link(source, target, rate_bps, latency_s, loss, trace, drift_s))
    return Overlay(draw(st.text()), tuple(sites), tuple(links))


@given(overlays())
def test_any_overlay_makes_the_round_trip(overlay):
    assert loads(dumps(overlay)) == overlay
