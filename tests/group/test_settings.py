"""What a scheduler tells every site, and the parts that a site makes of it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from anabranch.exchange.partition import Mixing
from anabranch.exchange.terms import Wire
from anabranch.group._settings import Settings
from anabranch.group.service import Service, Serving
from anabranch.merge import Fairness, Median
from anabranch.net.throughput import Arrival
from anabranch.overlay import Overlay
from anabranch.pace import Asp, Bsp
from anabranch.plan import Auxiliary, Fapt, Packed
from anabranch.scheduler.awareness import Oracle, Passive
from anabranch.scheduler.chunking import MOST_ELEMENTS
from anabranch.scheduler.paced import Serve
from anabranch.site.agent import Transport
from anabranch.site.serving import ServedModel
from anabranch.train.optimisers import Sgd
from tests.group.virtual import complete

PAIR = complete(2)


def told(overlay: Overlay = PAIR, **given: object) -> Settings:
    """Return what a service's sites are told, which has a scheduler's every default."""
    return Service(overlay, **given).settings(may_be_restarted=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("elements", "chunk_elements"),
    [(100, 1 << 14), (30_000_000, 30_000), (61_000_000, 61_000), (1_000_000_000, 1 << 16)],
)
def test_chunks_are_small_on_packed_trees_unless_told_otherwise(
    elements: int, chunk_elements: int
) -> None:
    assert told(planner=Packed()).chunk_elements(elements) == chunk_elements
    assert told(planner=Packed(), chunk_elements=7).chunk_elements(elements) == 7
    assert told(planner=Fapt()).chunk_elements(elements) == 1 << 18


def test_lanes_hold_what_may_be_under_way_unless_the_program_knows_better() -> None:
    auxiliary = Auxiliary(auxiliary_queue_length=5)
    settings = told(under_way_bytes=1 << 26, auxiliary=auxiliary)
    common = {"auxiliary": auxiliary, "leases": True, "least_relayed_bytes": 8_000_000}
    made = partial(Transport, 1 << 14, MOST_ELEMENTS, **common)
    assert settings.transport() == made(room_elements=1 << 24, kept_elements=1 << 24)
    assert settings.transport(100, 3, 400) == made(room_elements=400, strands=3)
    assert told(under_way_bytes=4).transport().room_elements == MOST_ELEMENTS  # one goes alone


def measures(settings: Settings, elements: int, size_bytes: int) -> bool:
    """Return whether a site measures a link by chunks of a size."""
    meter = settings.meter(elements)
    assert meter is not None
    for k in range(4):
        meter.arrived(1, Arrival(float(k), k + 0.5, size_bytes, backlogged=True))
    return bool(meter.latest)


def test_a_site_measures_by_chunks_that_are_large_for_the_model_that_it_serves() -> None:
    paper = told(awareness=Passive(estimator="chunk-mean"))
    for elements, least_bytes in ((0, 1 << 14), (61_000_000, 61_000)):  # a quarter, of 4 bytes each
        assert measures(paper, elements, least_bytes)
        assert not measures(paper, elements, least_bytes - 1)
    asked = told(awareness=Passive(estimator="chunk-mean", probe_chunk_elements=300))
    assert measures(asked, 61_000_000, 1200)
    assert not measures(asked, 61_000_000, 1199)


@pytest.mark.parametrize("awareness", [None, Oracle()])
def test_a_site_measures_nothing_where_nothing_is_made_of_it(awareness: Oracle | None) -> None:
    assert told(awareness=awareness).meter() is None


def test_a_model_is_served_as_the_scheduler_says() -> None:
    model, rule = np.zeros(9, np.float32), Sgd(1.0).start
    assert told(pace=Asp()).served_model(model, rule, 2, 1) == ServedModel(
        model, rule, 2, mixing=Mixing(averaged_elements=2, largest_elements=1)
    )
    serving = Serving(serve=Serve(only=("s0",), mixes="models"))
    robust = told(pace=Asp(), merge=Median(), serving=serving)
    served = robust.served_model(model, None, wire=Wire.SIZES)
    assert (served.workers, served.wire, served.mixing.of) == (1, Wire.SIZES, "models")
    assert served.mixing.combine is not None
    together = told(pace=Bsp(), merge=Fairness())
    served = together.served_model(model, rule, comes_later=True)
    assert (served.added_up, served.ahead, served.comes_later) == ((0, 1), 0, True)
    assert served.asks_norm
    ahead = told(pace=Bsp(), serving=Serving(serve=Serve(ahead=True))).served_model(model, rule)
    assert (ahead.added_up, ahead.ahead) == ((), 1)
