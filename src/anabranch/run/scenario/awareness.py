"""How the scheduler learns of the network while a run goes on: the tables of awareness."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from anabranch._typed_toml import Positive, Seconds, Table


class Passive(Table, frozen=True, kw_only=True, tag_field="kind", tag="passive"):
    """Measure links by the chunks that cross them anyway, and plan again as they change.

    Args:
        update_time_s: how often plans are looked at, seconds (UPDATE_TIME; the paper's is 5).
            Where a look takes long, the pause after it is at least twenty times that. How long
            rates last is learnt from looks at least 5 s apart.
        update_rate: how much a link's rate must have changed to count, relative (UPDATE_RATE).
        least_gain: how much shorter a round must get, relative, for a new plan to be taken.
        start: what is believed of links before they are measured: what the overlay says, or that
            all are ``equal``.
        estimator: ``busy-period`` tells the rate from latency and queueing; ``chunk-mean`` is the
            paper's (NetStorm, eq. 14).
        probe_chunk_elements: for ``chunk-mean``: smaller chunks are not measured
            (PROBE_CHUNK_SIZE); None for a quarter of the largest chunk.
        probe_chunks: for ``chunk-mean``: how many chunks an estimate is made of (PROBE_CHUNK_NUM).
    """

    update_time_s: Seconds = 1.0
    update_rate: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = 0.02
    start: Literal["overlay", "equal"] = "overlay"
    estimator: Literal["busy-period", "chunk-mean"] = "busy-period"
    probe_chunk_elements: Positive | None = None
    probe_chunks: Positive = 4


class Oracle(Table, frozen=True, kw_only=True, tag_field="kind", tag="oracle"):
    """Know every link's true rate at every moment: what awareness can be compared with.

    Args:
        update_time_s, update_rate, least_gain: as for ``passive``.
    """

    update_time_s: Seconds = 1.0
    update_rate: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = 0.02


Awareness = Passive | Oracle
