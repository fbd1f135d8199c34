"""Who may proceed when, who serves the model, and how much work each has: tables and makers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from anabranch import pace as paces
from anabranch._typed_toml import Positive, Table


class Bsp(Table, frozen=True, kw_only=True, tag_field="kind", tag="bsp"):
    """Bulk-synchronous: nobody takes the next step before all have ended this one."""


class Asp(Table, frozen=True, kw_only=True, tag_field="kind", tag="asp"):
    """Asynchronous: everybody goes on as soon as its own update is in."""


class Ssp(Table, frozen=True, kw_only=True, tag_field="kind", tag="ssp"):
    """Stale-synchronous.

    Args:
        lead: how many updates a worker may be ahead of the slowest.
    """

    lead: Annotated[int, Meta(ge=0)]


class Safa(Table, frozen=True, kw_only=True, tag_field="kind", tag="safa"):
    """Semi-asynchronous rounds of the quickest.

    Args:
        fraction: of the workers whose updates end a round.
        lag_tolerance: how many rounds late an update may come.
    """

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    lag_tolerance: Annotated[int, Meta(ge=0)] = 5


class R2sp(Table, frozen=True, kw_only=True, tag_field="kind", tag="r2sp"):
    """Round-robin synchronous: one worker after the other, evenly apart.

    Args:
        relaxation: of the gap between two turns, the paper's r.
    """

    relaxation: Annotated[float, Meta(ge=0, le=1)] = 0.8


class Waves(Table, frozen=True, kw_only=True, tag_field="kind", tag="waves"):
    """Steps of the first few updates that are in, as few as the network makes worth it.

    Args:
        staleness_cost: how many more iterations, as a part, training needs when every update
            misses all others of an iteration.
    """

    staleness_cost: Annotated[float, Meta(ge=0, le=1e6)] = 0.1


Pace = Bsp | Asp | Ssp | Safa | R2sp | Waves


class Serve(Table, frozen=True, kw_only=True):
    """Let the roots of the route's trees hold the model; workers push updates and pull it.

    Args:
        only: names of sites that compute nothing.
        ahead: whether a worker computes its next update while its last one and the model are on
            their way: they then cost no time, but what it computes on is one update older.
    """

    only: tuple[str, ...] = ()
    ahead: bool = False


class EqualBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="equal"):
    """Every site takes batches of the same size."""


class TunedBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="tuned"):
    """Faster workers take larger batches, so that iterations take equally long.

    Args:
        most: samples of the largest batch; what memory allows.
    """

    most: Positive


def make_pace(asked: Pace) -> paces.Pace:
    """Return a scenario's pace, fresh."""
    match asked:
        case Bsp():
            return paces.Bsp()
        case Asp():
            return paces.Asp()
        case Ssp(lead=lead):
            return paces.Ssp(lead)
        case Safa(fraction=fraction, lag_tolerance=lag_tolerance):
            return paces.Safa(fraction, lag_tolerance)
        case R2sp(relaxation=relaxation):
            return paces.R2sp(relaxation)
        case Waves(staleness_cost=staleness_cost):
            return paces.Waves(staleness_cost)


def make_load(asked: EqualBatches | TunedBatches, batch_size: int) -> paces.Load:
    """Return what sizes a scenario's batches, fresh."""
    if isinstance(asked, TunedBatches):
        return paces.Tuned(batch_size, asked.most)
    return paces.Equal(batch_size)
