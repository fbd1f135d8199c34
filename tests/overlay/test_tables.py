"""Networks as people have measured them: matrices, lists, iperf3 and ping."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.overlay import GraphLacks, OverlayError, load, read_table

RATES = """\
Mbit/s,paris,austin,tokyo
paris,,100,50
austin,90,0,40
tokyo,45,-,
"""
RTTS = """\
rtt_ms;paris;austin;tokyo
paris;0;120;230
austin;122;0;140
tokyo;230;142;0
"""
PING = """\
PING austin (192.0.2.7) 56(84) bytes of data.
--- austin ping statistics ---
100 packets transmitted, 96 received, 4% packet loss, time 99123ms
rtt min/avg/max/mdev = 20.100/21.000/23.900/0.900 ms
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def figures(overlay) -> dict[str, tuple[float, float]]:
    return {overlay.label(link): (link.rate_bps, link.latency_s) for link in overlay}


def test_matrices_of_rates_and_round_trips_are_an_overlay(tmp_path: Path) -> None:
    rates, rtts = write(tmp_path, "rates.csv", RATES), write(tmp_path, "rtts.csv", RTTS)
    overlay = load(rates, latencies=rtts)
    assert overlay.name == "rates"
    assert figures(overlay) == {
        "paris->austin": (100e6, 0.06),
        "paris->tokyo": (50e6, 0.115),
        "austin->paris": (90e6, 0.061),
        "austin->tokyo": (40e6, 0.07),
        "tokyo->paris": (45e6, 0.115),
    }
    assert overlay.provenance == (
        "rate of links: Mbit/s of rates.csv (5)",
        "latency of links: rtt_ms of rtts.csv (5)",
        "loss of links: 0, for none is given (5)",
        "not used: rtt_ms of rtts.csv of 1, such as 'tokyo->austin: 0.071': it is of no link with "
        "a rate",
    )


def test_a_matrix_of_latencies_alone_takes_a_rate(tmp_path: Path) -> None:
    path = write(tmp_path, "cloud.csv", RTTS)
    assert {link.rate_bps for link in read_table(path, rate=1e8)} == {1e8}
    with pytest.raises(GraphLacks, match=r"cloud.csv: link paris->austin has no rate"):
        read_table(path)


def test_a_list_names_its_columns_in_any_usual_way(tmp_path: Path) -> None:
    text = (
        "src_region,dest_region,n,median_received_mbps,min_rate,packet_loss\n"
        "a,b,3,100,90,0.1\nb,a,3,81,70,\na,a,3,999,999,\n"
    )
    overlay = read_table(write(tmp_path, "list.csv", text), default_latency_s=0.05)
    links = {overlay.label(link): link for link in overlay}
    assert set(links) == {"a->b", "b->a"}
    assert links["a->b"].goodput_bps == pytest.approx(100e6)  # what was measured is goodput
    assert (links["b->a"].rate_bps, links["b->a"].loss) == (81e6, 0.0)
    assert overlay.provenance[0] == "rate of links: median_received_mbps of list.csv (2)"
    assert overlay.provenance[-1] == ("not used: min_rate of 1, such as '90': it has no usual name")


def iperf3(rate_bps: float, **test: object) -> str:
    end = {"sum_sent": {"bits_per_second": 2 * rate_bps}}
    end["sum_received"] = {"bits_per_second": rate_bps}
    return json.dumps({"start": {"test_start": {"protocol": "TCP", **test}}, "end": end})


def test_a_folder_of_iperf3_and_ping_results_is_an_overlay(tmp_path: Path) -> None:
    folder = tmp_path / "measured"
    folder.mkdir()
    write(folder, "paris--austin.json", iperf3(96e6))
    # At paris with --reverse, austin sends.
    write(folder, "paris--tokyo.json", iperf3(30e6, reverse=1))
    write(folder, "tokyo--austin.json", iperf3(20e6))
    write(folder, "austin--paris.json", iperf3(10e6))
    write(folder, "tokyo--paris.txt", "Minimum = 9ms, Maximum = 12ms, Average = 10ms")
    write(folder, "paris--austin.txt", PING)
    write(folder, "austin--tokyo.txt", PING)
    write(folder, "notes.md", "not read")
    with pytest.raises(OverlayError, match="disconnected"):  # no way to tokyo was measured
        load(folder)
    write(folder, "austin--tokyo.json", iperf3(40e6))
    overlay = load(folder)
    links = {overlay.label(link): link for link in overlay}
    assert links["paris->austin"].goodput_bps == pytest.approx(96e6)
    assert links["paris->austin"].loss == pytest.approx(1 - 0.96**0.5)
    assert links["austin->paris"].latency_s == 0.0105
    assert (links["tokyo->paris"].rate_bps, links["tokyo->paris"].latency_s) == (30e6, 0.005)
    assert overlay.provenance[0] == "rate of links: iperf3 (5)"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "no rows"),
        ("a.csv", "x,a,b\na,0,1\nb,1,0\n", "the first cell is 'x'; let it say"),
        ("a.csv", "Mbit/s,a,b\nb,0,1\na,1,0\n", "neither a list nor a matrix"),
        ("a.csv", "Mbit/s,a,b\na,0\nb,1,0\n", r"a.csv:2: 2 cells, and the first line has 3"),
        ("a.csv", "Mbit/s,a,b\na,0,fast\nb,1,0\n", r"a.csv:2: a->b 'fast' is no rate"),
        ("a.csv", "Mbit/s,a,b\na,0,0\nb,1,0\n", r"a.csv:2: a->b '0' must be finite and > 0"),
        ("a.csv", "from,to,n\na,b,1\n", "no column of rates or latencies"),
        ("a.csv", "from,to,rate\na,b,1\n", r"a.csv:2: rate '1' has no unit, such as Mbit/s"),
        ("a.csv", "from,to,rate_bps\na,b,1\na,b,2\n", r"a.csv:3: a second rate of a->b, 2 after 1"),
        ("m/a.json", "{}", "name it SOURCE--TARGET.json"),
        ("m/a--b.json", "{}", "is no result of iperf3 --json: KeyError"),
        ("m/a--b.json", "[1]", "is no result of iperf3 --json"),
        ("m/a--b.json", '{"error": "unable to connect"}', "iperf3 failed: unable to connect"),
        ("m/a--b.txt", "ping: unknown host", "holds no times of ping"),
        ("m/readme.md", "", "holds no measurement"),
    ],
)
def test_what_is_wrong_with_a_table_is_named_with_its_line(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OverlayError, match=said):
        load(path if path.suffix == ".csv" else path.parent, default_latency_s=0.01)


def test_an_argument_for_other_files_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "rates.csv", RATES)
    with pytest.raises(OverlayError, match="does not take capacity, which is for files that end"):
        load(path, capacity="rate:Mbit/s")
    with pytest.raises(
        OverlayError, match="does not take latencies, which is for graph files, tab"
    ):
        load("aws-8", latencies=path)
