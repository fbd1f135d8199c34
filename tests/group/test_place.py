"""Who a site is and where, from arguments, variables and what a cluster says."""

from __future__ import annotations

import pytest

from anabranch.group.place import find

OURS = {"ANABRANCH_SCHEDULER": "head:7700", "ANABRANCH_TOKEN": "t"}
NAMES = {"ANABRANCH_SITES": "paris, austin,tokyo"}


def test_an_argument_goes_before_a_variable() -> None:
    environment = {
        **OURS,
        "ANABRANCH_SITE": "austin",
        "ANABRANCH_HOST": "0.0.0.0",
        "ANABRANCH_PORT": "7702",
        "ANABRANCH_ADVERTISE": "a.example.org",
        "ANABRANCH_TLS": "/certs",
        "ANABRANCH_INSECURE": "0",
    }
    place = find(environment)
    assert (place.scheduler, place.site, place.token) == ("head:7700", "austin", "t")
    assert (place.host, place.port, place.advertise) == ("0.0.0.0", 7702, "a.example.org")
    assert (place.tls, place.insecure) == ("/certs", False)
    place = find(
        environment,
        scheduler="other:1",
        site="paris",
        token="u",
        host="10.0.0.1",
        port=0,
        advertise="b.example.org",
        tls="/mine",
    )
    assert (place.scheduler, place.site, place.token) == ("other:1", "paris", "u")
    assert (place.host, place.port, place.advertise) == ("10.0.0.1", 0, "b.example.org")
    assert place.tls == "/mine"


def test_without_any_a_site_is_found_where_it_reaches_the_scheduler() -> None:
    place = find(OURS, site="paris")
    assert (place.host, place.port, place.advertise) == (None, 0, None)
    assert (place.tls, place.insecure) == (None, False)


def test_a_variable_says_that_a_site_takes_no_connections() -> None:
    behind_nat = {**OURS, "ANABRANCH_OUTBOUND_ONLY": "1"}
    place = find(behind_nat, site="paris")
    assert (place.outbound_only, place.host, place.port, place.advertise) == (True, None, 0, None)
    assert not find(OURS, site="paris").outbound_only
    elsewhere = {**OURS, "ANABRANCH_HOST": "0.0.0.0", "ANABRANCH_ADVERTISE": "a.example.org"}
    place = find(elsewhere, site="paris", outbound_only=True)  # an argument goes before them
    assert (place.outbound_only, place.host, place.advertise) == (True, None, None)


@pytest.mark.parametrize("said", ["HOST", "PORT", "ADVERTISE"])
def test_a_site_that_takes_no_connections_has_no_variable_that_says_where(said: str) -> None:
    environment = {**OURS, "ANABRANCH_OUTBOUND_ONLY": "1", f"ANABRANCH_{said}": "7702"}
    with pytest.raises(ValueError, match=r"ANABRANCH_OUTBOUND_ONLY is set.*set no.*ANABRANCH_HOST"):
        find(environment, site="paris")


@pytest.mark.parametrize("variable", ["SLURM_PROCID", "JOB_COMPLETION_INDEX"])
def test_a_site_is_named_by_its_place_in_the_list(variable: str) -> None:
    environment = {**OURS, **NAMES, variable: "1"}
    assert find(environment).site == "austin"
    assert find({**environment, "ANABRANCH_SITE": "tokyo"}).site == "tokyo"


def test_slurm_says_where_a_site_is_found_that_takes_all_connections() -> None:
    environment = {**OURS, "SLURMD_NODENAME": "node7"}
    assert find(environment, site="a", host="0.0.0.0").advertise == "node7"
    assert find(environment, site="a", host="0.0.0.0", advertise="x").advertise == "x"
    assert find(environment, site="a").advertise is None  # on this machine alone


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"ANABRANCH_TOKEN": "t"}, "scheduler is not given.*ANABRANCH_SCHEDULER"),
        ({"ANABRANCH_SCHEDULER": "h:1", "ANABRANCH_SITE": "a"}, "token is not given"),
        (OURS, "site is not given.*ANABRANCH_SITES.*SLURM_PROCID or .JOB_COMPLETION_INDEX"),
        ({**OURS, **NAMES}, "site is not given"),
        ({**OURS, "SLURM_PROCID": "1"}, "site is not given"),
        ({**OURS, **NAMES, "SLURM_PROCID": "3"}, "names for 0..2; start as many"),
        ({**OURS, **NAMES, "JOB_COMPLETION_INDEX": "-1"}, "JOB_COMPLETION_INDEX is '-1'"),
        ({**OURS, "ANABRANCH_SITE": "a", "ANABRANCH_PORT": "70000"}, "no port"),
        ({**OURS, "ANABRANCH_SITE": "a", "ANABRANCH_INSECURE": "maybe"}, "give 1 or 0"),
    ],
)
def test_what_is_missing_is_named_with_how_to_give_it(
    environment: dict[str, str], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        find(environment)
