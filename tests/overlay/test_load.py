"""One door for names and files."""

from pathlib import Path

import pytest

from anabranch.overlay import OverlayError, UniformRates, dumps, internet2_9, load

from ..every import every

EXAMPLES = Path(__file__).parents[2] / "examples" / "overlays"
GML = """graph [
  node [ id 0 label "a" ] node [ id 1 label "b" ] edge [ source 0 target 1 ]
]"""


def test_a_built_in_overlay_is_found_by_name():
    assert load("internet2-9") == internet2_9()


def test_a_toml_file_is_found_by_its_suffix(tmp_path):
    path = tmp_path / "nine.toml"
    path.write_text(dumps(internet2_9()), encoding="utf-8")
    assert load(path) == load(str(path)) == internet2_9()


@pytest.mark.parametrize("name", ["pair.gml", "pair.GML"])
def test_a_graph_file_is_found_by_its_suffix_and_takes_a_rate_rule(tmp_path, name):
    path = tmp_path / name
    path.write_text(GML, encoding="utf-8")
    assert {link.rate_bps for link in load(path, 5e6, default_latency_s=0.01)} == {5e6}
    drawn = load(path, rate=UniformRates(1e6, 2e6, seed=0), default_latency_s=0.01)
    assert len({link.rate_bps for link in drawn}) == 2
    with pytest.raises(OverlayError, match="edge a->b has no rate"):
        load(path, default_latency_s=0.01)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("internet2-8", "internet2-8 is neither a built-in .* did you mean the built-in 'internet"),
        ("nowhere", "nowhere is neither .*; built in: aws-8, internet2-9, skyplane-10"),
        ("net.json", "net.json is neither a built-in overlay nor a file that ends in one of .toml"),
        ("internet29.toml", "no file internet29.toml; .* did you mean the built-in 'internet2-9'"),
        ("none.gml", "there is no file none.gml; check the path"),
        ("none.graphml", "there is no file none.graphml"),
    ],
)
def test_what_cannot_be_found_is_named_with_the_nearest_that_can(source, complaint):
    with pytest.raises(OverlayError, match=complaint):
        load(source)


@pytest.mark.parametrize(
    "choice", [{"rate": 1e6}, {"default_latency_s": 0.01}, {"largest_part": True}]
)
@pytest.mark.parametrize("source", ["internet2-9", "any.toml"])
def test_a_graph_file_argument_for_anything_else_is_refused(source, choice):
    with pytest.raises(
        OverlayError,
        match=r"does not take (rate|default_latency_s|largest_part), which is for .*files",
    ):
        load(source, **choice)


def test_errors_in_a_toml_file_name_the_file(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("name = \n", encoding="utf-8")
    with pytest.raises(OverlayError, match=r"bad.toml: not TOML: .*line 1"):
        load(path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(OverlayError, match=r"bad.toml:1: byte 0x\w\w is not UTF-8"):
        load(path)


def test_a_directory_without_measurements_is_no_overlay(tmp_path):
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(OverlayError, match=r"dir.toml holds no measurement"):
        load(tmp_path / "dir.toml")


def test_the_example_says_what_its_comments_say():
    overlay = load(EXAMPLES / "two-coasts.toml")
    assert (overlay.name, overlay.size, len(overlay.links)) == ("two-coasts", 5, 10)
    new_york, atlanta, seattle, los_angeles = map(
        overlay.index, ("new-york", "atlanta", "seattle", "los-angeles")
    )
    assert overlay.link(new_york, atlanta).rate_bps == 155e6
    assert overlay.link(atlanta, new_york).rate_bps == 80e6
    assert overlay.link(atlanta, new_york).latency_s == 0.008
    assert overlay.link(seattle, los_angeles).trace.rate_bps(200.0) == 35e6
    assert overlay.link(los_angeles, seattle).trace.rate_bps(200.0) == 70e6


def test_the_examples_commented_dynamics_work_in_place_of_its_traces(tmp_path):
    text = (EXAMPLES / "two-coasts.toml").read_text(encoding="utf-8")
    head, tail = text.split("# [dynamics]")
    head = head.replace("trace = {", "rate_bps = 1e6 #").replace("back_rate_bps = 1e6 #", "# ")
    dynamics = "[dynamics]" + tail.replace("\n# ", "\n")
    path = tmp_path / "changing.toml"
    back = head.replace("# starts_s = [0, 240]", "back_rate_bps = 1e6 #")
    path.write_text(back + dynamics, encoding="utf-8")
    overlay = load(path)
    assert every(len(link.trace.starts_s) == 20 for link in overlay)
