"""Files of the Internet Topology Zoo, and files shaped like them, become overlays."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.overlay import OverlayError, Site, UniformRates, dumps, loads, read_graph
from anabranch.overlay._geography import fibre_latency_s

from ..every import every

NODES = """
  node [ id 0 label "Oslo" Longitude 10.75 Internal 1 Latitude 59.91 ]
  node [ id 1 label "Bergen" Longitude 5.32 Internal 1 Latitude 60.39 ]
  node [ id 2 label "None" Internal 1 ]
  node [ id 3 label "None" Internal 0 ]
"""
EDGES = """
  edge [ source 0 target 1 LinkLabel "10G" LinkSpeedRaw 10000000000.0 ]
  edge [ source 1 target 2 id "e1" LinkSpeedRaw 1000000000 ]
  edge [ source 2 target 0 LinkSpeedRaw 2.0e9 ]
  edge [ source 3 target 0 LinkSpeedRaw 3.0e9 ]
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "zoo.gml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def write_gml(write):
    return lambda edges=EDGES, nodes=NODES, head="": write(
        f'Creator "zoo"\ngraph [\n{head}{nodes}{edges}]\n'
    )


def rates(overlay):
    return {overlay.label(link): link.rate_bps for link in overlay}


def test_an_undirected_edge_is_a_link_each_way_at_its_capacity(write_gml):
    overlay = read_graph(write_gml(), default_latency_s=0.01, loss=0.001)
    assert overlay.name == "zoo"
    assert rates(overlay)["Oslo->Bergen"] == rates(overlay)["Bergen->Oslo"] == 10e9
    assert len(overlay.links) == 8
    assert {link.loss for link in overlay} == {0.001}


def test_repeated_and_empty_labels_get_the_nodes_id(write_gml):
    nodes = NODES + '  node [ id 7 label "" hyperedge 1 ]\n  node [ id 8 ]\n'
    edges = EDGES + "  edge [ source 7 target 0 ]\n  edge [ source 7 target 8 ]\n"
    overlay = read_graph(write_gml(edges, nodes), rate=1e9, default_latency_s=0.01)
    assert [site.name for site in overlay.sites] == [
        *("Oslo", "Bergen", "None #2", "None #3", "#7", "8"),
    ]


def test_positions_are_read(write_gml):
    overlay = read_graph(write_gml(), default_latency_s=0.01)
    assert overlay.sites[0] == Site("Oslo", 59.91, 10.75)
    assert overlay.sites[2] == Site("None #2")


def test_latency_is_the_distance_where_both_ends_have_positions_else_the_default(write_gml):
    overlay = read_graph(write_gml(), default_latency_s=0.01)
    assert overlay.link(0, 1).latency_s == pytest.approx(fibre_latency_s(*overlay.sites[:2]))
    assert overlay.link(1, 2).latency_s == 0.01


def test_positions_may_be_left_out_of_latency(write_gml):
    overlay = read_graph(write_gml(), default_latency_s=0.01, geographic=False)
    assert {link.latency_s for link in overlay} == {0.01}


def test_an_edges_own_latency_is_taken_first(write_gml):
    edges = EDGES.replace('LinkLabel "10G"', "latency_s 0.5")
    assert read_graph(write_gml(edges), default_latency_s=0.01).link(0, 1).latency_s == 0.5


def test_an_edge_without_latency_is_an_error_that_names_it(write_gml):
    with pytest.raises(
        OverlayError,
        match=r"zoo.gml: edge Oslo->None #2 has no latency, and None #2 has no position;",
    ):
        read_graph(write_gml())
    with pytest.raises(OverlayError, match="edge Oslo->Bergen has no latency; give the latency"):
        read_graph(write_gml(), geographic=False)


def test_parallel_edges_add_their_rates_and_keep_the_least_latency(write_gml):
    parallel = "  edge [ source 1 target 0 LinkSpeedRaw 5.0e9 latency_s 0.0001 ]\n"
    overlay = read_graph(write_gml(EDGES + parallel), default_latency_s=0.01)
    assert rates(overlay)["Oslo->Bergen"] == rates(overlay)["Bergen->Oslo"] == 15e9
    assert overlay.link(0, 1).latency_s == 0.0001
    assert len(overlay.links) == 8


def test_a_file_that_announces_parallel_edges_reads_the_same(write_gml):
    parallel = EDGES + "  edge [ source 0 target 1 LinkSpeedRaw 5.0e9 ]\n"
    bare = read_graph(write_gml(parallel), default_latency_s=0.01)
    assert read_graph(write_gml(parallel, head="  multigraph 1\n"), default_latency_s=0.01) == bare


def test_an_edge_from_a_node_to_itself_is_left_out(write_gml):
    loop = "  edge [ source 0 target 0 ]\n"
    plain = read_graph(write_gml(), default_latency_s=0.01)
    assert read_graph(write_gml(EDGES + loop), default_latency_s=0.01) == plain


def test_a_directed_edge_is_one_link(write_gml):
    circle = EDGES.replace("source 3 target 0", "source 0 target 3") + (
        "  edge [ source 3 target 0 LinkSpeedRaw 4.0e9 ]\n"
    )
    overlay = read_graph(write_gml(circle, head="  directed 1\n"), default_latency_s=0.01)
    assert rates(overlay) == {
        "Oslo->Bergen": 10e9,
        "Bergen->None #2": 1e9,
        "None #2->Oslo": 2e9,
        "Oslo->None #3": 3e9,
        "None #3->Oslo": 4e9,
    }


def test_an_edge_without_capacity_is_an_error_that_says_how_to_give_the_rule(write_gml):
    edges = EDGES.replace("LinkSpeedRaw 2.0e9", "")
    with pytest.raises(
        OverlayError,
        match=r"zoo.gml: edge Oslo->None #2 has no rate; .* rate=155e6 \(bit/s\) or "
        r"rate=UniformRates\(20e6, 155e6, seed=0\)$",
    ):
        read_graph(write_gml(edges), default_latency_s=0.01)


def test_the_error_names_another_attribute_that_may_hold_capacity(write_gml):
    edges = EDGES.replace("LinkSpeedRaw", "width")
    with pytest.raises(OverlayError, match="which key holds it: capacity='width'"):
        read_graph(write_gml(edges), default_latency_s=0.01)


def test_the_attribute_and_unit_of_capacity_can_be_chosen(write_gml):
    given = EDGES.replace("LinkSpeedRaw 10000000000.0", "LinkSpeedRaw 5")
    given = given.replace("LinkSpeedRaw", "width")
    for unit, rate_bps in (("Gbit/s", 5e9), ("kB/s", 40e3)):
        overlay = read_graph(write_gml(given), default_latency_s=0.01, capacity=f"width:{unit}")
        assert rates(overlay)["Oslo->Bergen"] == rate_bps
    with pytest.raises(OverlayError, match="no edge has 'with'; the edges have LinkLabel, id, wid"):
        read_graph(write_gml(given), rate=1e6, default_latency_s=0.01, capacity="with:Gbit/s")


def test_a_constant_rate_fills_edges_without_capacity_only(write_gml):
    edges = EDGES.replace("LinkSpeedRaw 2.0e9", "")
    overlay = read_graph(write_gml(edges), rate=155e6, default_latency_s=0.01)
    assert rates(overlay)["None #2->Oslo"] == 155e6
    assert rates(overlay)["Oslo->Bergen"] == 10e9


def test_capacities_can_be_left_unread(write_gml):
    overlay = read_graph(write_gml(), rate=155e6, capacity=None, default_latency_s=0.01)
    assert set(rates(overlay).values()) == {155e6}
    with pytest.raises(OverlayError, match="has no rate: capacity=None leaves the file's unread"):
        read_graph(write_gml(), capacity=None, default_latency_s=0.01)


def test_a_uniform_rule_draws_each_direction_by_itself_and_repeats(write_gml):
    path, rule = write_gml(), UniformRates(20e6, 155e6, seed=3)
    first, second = (
        read_graph(path, rate=rule, capacity=None, default_latency_s=0.01) for _ in range(2)
    )
    assert first == second
    assert len(set(rates(first).values())) == len(first.links)
    assert every(20e6 <= rate_bps <= 155e6 for rate_bps in rates(first).values())


@pytest.mark.parametrize("value", ["0", "-1", "+INF"])
def test_a_capacity_that_is_no_rate_is_an_error_that_names_the_edge(write_gml, value):
    edges = EDGES.replace("10000000000.0", value)
    with pytest.raises(OverlayError, match=r"edge Oslo->Bergen has LinkSpeedRaw .*which must be"):
        read_graph(write_gml(edges), rate=1e9, default_latency_s=0.01)


USUAL_EDGES = {
    'latency "30 ms" bandwidth "1 Gbit" packet_loss 0.1': (1e9, 0.03, 0.1),
    "delay_ms 30 bandwidth_mbps 12.5 loss_percent 2": (12.5e6, 0.03, 0.02),
    'LinkSpeed "10" LinkSpeedUnits "G" latency_s 0.5': (10e9, 0.5, 0.0),
    'LinkSpeed "155" LinkSpeedUnits "M" LinkSpeedRaw 155000000.0 owd "250us"': (155e6, 250e-6, 0.0),
    'rttMs 60 capacity "100 MB/s" loss "0.5 %"': (800e6, 0.03, 0.005),
    'propagation_delay "1.5e-2 s" speed "2.5 Mbps"': (2.5e6, 0.015, 0.0),
}


@pytest.mark.parametrize("edge", USUAL_EDGES)
@pytest.mark.parametrize("suffix", [".gml", ".graphml"])
def test_the_usual_names_and_units_of_edges_are_read(write, edge, suffix):
    pairs = re.findall(r'(\w+) ("[^"]*"|\S+)', edge)
    data = "".join(f'<data key="{key}">{value.strip(chr(34))}</data>' for key, value in pairs)
    keys = "".join(
        f'<key id="{key}" for="edge" attr.name="{key}" '
        f'attr.type="{"string" if value.startswith(chr(34)) else "double"}"/>'
        for key, value in pairs
    )
    text = {
        ".gml": f"graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 {edge} ] ]",
        ".graphml": f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}'
        '<graph edgedefault="undirected"><node id="0"/><node id="1"/>'
        f'<edge source="0" target="1">{data}</edge></graph></graphml>',
    }[suffix]
    # What is given serves only edges that say nothing.
    overlay = read_graph(write(text, f"small{suffix}"), rate=1.0, default_latency_s=9.0)
    for link in overlay:
        assert (link.rate_bps, link.latency_s, link.loss) == pytest.approx(USUAL_EDGES[edge])
    assert not any("not used" in line for line in overlay.provenance)


def test_where_figures_come_from_is_told_and_what_is_not_used(write_gml):
    edges = """
  edge [ source 0 target 1 LinkSpeedRaw 10000000000.0 LinkLabel "<45Mb" latency 30 delay "5 ms" ]
  edge [ source 1 target 2 bandwidth 1000 backupBandwidth 5 colour "red" ]
  edge [ source 2 target 0 bandwidth_mbps 3 speed "7 Mbit/s" ]
  edge [ source 3 target 0 ]
"""
    overlay = read_graph(write_gml(edges), rate=2e6, default_latency_s=0.01)
    assert set(rates(overlay).values()) == {10e9, 2e6, 3e6}
    assert overlay.link(0, 1).latency_s == 0.005
    assert overlay.provenance == (
        "rate of links: LinkSpeedRaw (2), bandwidth_mbps (2), as given (4)",
        "latency of links: delay (2), as given (6)",
        "loss of links: 0, for none is given (8)",
        "not used: latency of 2, such as 30: it has no unit, such as ms",
        "not used: speed of 2, such as '7 Mbit/s': it differs from bandwidth_mbps, which is used",
        "not used: bandwidth of 2, such as 1000: it has no unit, such as Mbit/s",
        "not used: LinkLabel of 2, such as '<45Mb': it has no usual name of a rate; name it as the "
        "capacity to use it",
        "not used: backupBandwidth of 2, such as 5: it has no usual name of a rate; name it as the "
        "capacity to use it",
    )
    with pytest.raises(OverlayError, match=r"has no rate \(bandwidth 1000 has no unit, such as Mb"):
        read_graph(write_gml(edges), default_latency_s=0.01, external=False, largest_part=True)
    chosen = read_graph(
        write_gml(edges), rate=2e6, default_latency_s=0.01, capacity="bandwidth:kB/s"
    )
    assert chosen.link(1, 2).rate_bps == 8e6


@pytest.mark.parametrize(
    ("edge", "said"),
    [
        ("packet_loss 5", "packet_loss 5, which must be a share of packets in .*percent with a %"),
        ("latency_ms -1", "latency_ms -1, which must be finite and >= 0"),
        ('bandwidth "0 Mbit/s"', "bandwidth '0 Mbit/s', which must be finite and > 0"),
    ],
)
def test_a_figure_that_no_link_can_have_is_an_error(write_gml, edge, said):
    with pytest.raises(OverlayError, match=f"edge Oslo->Bergen has {said}"):
        read_graph(
            write_gml(f"  edge [ source 0 target 1 {edge} ]\n"),
            rate=1e6,
            default_latency_s=0.01,
            largest_part=True,
        )


def test_parallel_edges_lose_what_their_rates_lose(write_gml):
    edges = EDGES + "  edge [ source 0 target 1 bandwidth_mbps 30000 loss 0.4 ]\n"
    assert read_graph(write_gml(edges), default_latency_s=0.01).link(0, 1).loss == pytest.approx(
        0.3
    )


def test_a_position_that_is_no_number_is_an_error_that_names_the_node(write_gml):
    nodes = NODES.replace("Latitude 59.91", 'Latitude "north"')
    with pytest.raises(OverlayError, match="node 0 has Latitude 'north', which must be a number"):
        read_graph(write_gml(nodes=nodes))


def test_external_nodes_can_be_dropped(write_gml):
    overlay = read_graph(write_gml(), default_latency_s=0.01, external=False)
    assert [site.name for site in overlay.sites] == ["Oslo", "Bergen", "None"]


def test_an_isolated_node_is_an_error_unless_only_the_largest_part_is_wanted(write_gml):
    path = write_gml(nodes=NODES + '  node [ id 9 label "Island" ]\n')
    with pytest.raises(OverlayError, match=r"2 parts .*node 9 \(Island\).*largest_part=True"):
        read_graph(path, default_latency_s=0.01)
    kept = read_graph(path, default_latency_s=0.01, largest_part=True)
    assert kept == read_graph(write_gml(), default_latency_s=0.01)


def test_one_way_streets_split_a_directed_graph(write_gml):
    path = write_gml(head="  directed 1\n")
    with pytest.raises(OverlayError, match=r"2 parts .*node 3 \(None\)"):
        read_graph(path, default_latency_s=0.01)
    assert read_graph(path, default_latency_s=0.01, largest_part=True).size == 3


def test_a_file_without_nodes_is_an_error(write_gml):
    with pytest.raises(OverlayError, match=r"zoo.gml: overlay 'zoo' has no site"):
        read_graph(write_gml(edges="", nodes=""))


def test_names_beyond_ascii_are_read(write_gml):
    nodes = NODES.replace("Bergen", "Tromsø").replace("Oslo", "Malm&#246;")
    overlay = read_graph(write_gml(nodes=nodes), default_latency_s=0.01)
    assert [site.name for site in overlay.sites[:2]] == ["Malmö", "Tromsø"]


@pytest.mark.parametrize(
    ("text", "name", "complaint"),
    [
        ("graph [\n node [ id 0\n oops ]\n]", "a.gml", r"a.gml is not a gml graph: .*\(3, 7\)"),
        ('graph [ node "x" ]', "a.gml", "a.gml is not a gml graph: .*'str' object"),
        ("", "a.gml", "a.gml is not a gml graph"),
        ("<graphml", "a.graphml", "a.graphml is not a graphml graph: .*line 1"),
        ("<html/>", "a.graphml", "a.graphml is not a graphml graph"),
        ("", "a.txt", "a.txt does not end in .gml or .graphml; rename it"),
    ],
)
def test_a_file_that_does_not_parse_is_an_error_that_says_where(write, text, name, complaint):
    with pytest.raises(OverlayError, match=complaint):
        read_graph(write(text, name))


@pytest.mark.parametrize("name", ["missing.gml", "missing.graphml"])
def test_a_missing_file_is_an_error(tmp_path, name):
    with pytest.raises(OverlayError, match=f"cannot read .*{name}: No such file"):
        read_graph(tmp_path / name)


def test_graphml_reads_as_gml_does(write, write_gml):
    import networkx as nx

    gml = read_graph(write_gml(), default_latency_s=0.01)
    graph = nx.MultiGraph()
    for i, site in enumerate(gml.sites):
        place = {"Latitude": site.latitude_deg, "Longitude": site.longitude_deg}
        label = site.name.split(" #")[0]
        graph.add_node(i, label=label, **{k: v for k, v in place.items() if v is not None})
    # Two halves of the Oslo-Bergen link, so that the file has parallel edges.
    for a, b, rate_bps in ((0, 1, 4e9), (1, 2, 1e9), (2, 0, 2e9), (3, 0, 3e9), (0, 1, 6e9)):
        graph.add_edge(a, b, LinkSpeedRaw=rate_bps)
    path = write("", "zoo.graphml")
    nx.write_graphml(graph, path)
    read = read_graph(path, default_latency_s=0.01)
    assert read.sites == gml.sites
    assert set(read) == set(gml)


def test_graphml_default_capacity_is_applied(write):
    text = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
      <key id="c" for="edge" attr.name="capacity" attr.type="double"><default>5e6</default></key>
      <graph edgedefault="undirected">
        <node id="a"/><node id="b"/><node id="c"/>
        <edge source="a" target="b"/>
        <edge source="b" target="c"><data key="c">7e6</data></edge>
      </graph></graphml>"""
    overlay = read_graph(
        write(text, "small.graphml"), capacity="capacity:bit/s", default_latency_s=0.01
    )
    assert rates(overlay) == {"a->b": 5e6, "b->a": 5e6, "b->c": 7e6, "c->b": 7e6}


# The zoo's own files, as they are.

DATA = os.environ.get("ANABRANCH_DATA")
zoo = pytest.mark.skipif(
    DATA is None, reason="ANABRANCH_DATA does not name a directory that holds topology-zoo/"
)


def zoo_file(name: str) -> Path:
    return Path(DATA or "") / "topology-zoo" / name


@zoo
@pytest.mark.parametrize("suffix", ["gml", "graphml"])
def test_abilene_has_11_sites_14_pairs_and_real_distances(suffix):
    overlay = read_graph(zoo_file(f"Abilene.{suffix}"), rate=10e9)
    assert (overlay.size, len(overlay.links)) == (11, 28)
    link = overlay.link(overlay.index("New York"), overlay.index("Chicago"))
    assert link.latency_s == pytest.approx(1144e3 / 199.86e6, rel=0.01)


@zoo
def test_both_formats_of_a_zoo_file_agree():
    for name in ("Abilene", "Internet2"):
        gml, graphml = (
            read_graph(zoo_file(f"{name}.{suffix}"), rate=1e9, default_latency_s=0.01)
            for suffix in ("gml", "graphml")
        )
        assert gml.sites == graphml.sites
        assert set(gml) == set(graphml)


@zoo
def test_esnet_merges_its_parallel_edges_and_tells_its_nameless_nodes_apart():
    path = zoo_file("Esnet.gml")
    overlay = read_graph(path, rate=1e9, default_latency_s=0.01)
    assert (overlay.size, len(overlay.links)) == (68, 2 * 79)  # 92 edges in the file
    names = rates(overlay)
    assert names["CHIC->NETL"] == 3e9  # three edges without a capacity
    assert names["SEA->SNV1"] == 10e9 + 1e9  # one with, one without
    assert overlay.sites[16].name == "None #16"
    assert read_graph(path, rate=1e9, default_latency_s=0.01, external=False).size == 54


@zoo
def test_internet2_keeps_its_hyperedges_as_sites():
    overlay = read_graph(zoo_file("Internet2.gml"), rate=1e9, default_latency_s=0.01)
    assert (overlay.size, len(overlay.links)) == (20, 52)
    assert [site.name for site in overlay.sites[10:13]] == ["#10", "#11", "#12"]


@zoo
@pytest.mark.parametrize("name", ["Abilene", "Esnet", "Internet2", "Nsfnet"])
def test_a_zoo_file_survives_conversion_to_our_format(name):
    rule = UniformRates(20e6, 155e6, seed=0)
    overlay = read_graph(zoo_file(f"{name}.gml"), rate=rule, default_latency_s=0.01)
    assert loads(dumps(replace(overlay, name=name))) == overlay
