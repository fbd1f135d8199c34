"""What a scheduler of a group tells every site on joining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from anabranch.net.errors import RunAborted
from anabranch.net.silence import STILLNESS_S
from anabranch.plan import Auxiliary, filling_elements
from anabranch.site.meter import Measuring

if TYPE_CHECKING:
    from anabranch.merge import AnyMerge
    from anabranch.period import Gossip


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the sites of a group send and measure, the same at all of them.

    Attributes:
        deep: whether the trees are many and deep.
        least_chunk_elements, most_chunk_elements: of any buffer's chunks.
        under_way_bytes: of buffers whose exchanges may be under way at once; a larger one goes
            alone.
        auxiliary: how many chunks paths between tree neighbours take; None where there are none.
        measuring: how a site measures its links; None where it measures nothing.
        assumes_rates: whether the overlay's rates are placeholders.
        workers: how many sites push updates, where the model is served; 0 where none is.
        added_up: those sites, where the pace is a barrier.
        ahead: how many updates a worker may compute ahead.
        mixes: what a step makes of what workers come to, see
            :class:`anabranch.scheduler.paced.Serve`.
        merge_json: the merge rule; empty for the mean. As text, since few groups have another, and
            a client loads no rule that it does not need.
        gossip_json: how sites gossip, likewise; empty where they do not.
        silence_s: no lane is given up that is silent for less, seconds; None for what holds where
            that ends the group.
        stillness_s: nor one that is silent for less while its kernel answers, seconds.
        away_s: how long a site waits for a scheduler that is gone, at least, seconds.
    """

    kind: Literal["group"] = "group"
    deep: bool = False
    least_chunk_elements: int
    most_chunk_elements: int
    under_way_bytes: int
    auxiliary: Auxiliary | None = None
    measuring: Measuring | None = None
    assumes_rates: bool = False
    workers: int = 0
    added_up: tuple[int, ...] = ()
    ahead: int = 0
    mixes: Literal["updates", "models", "cache"] = "updates"
    merge_json: str = ""
    gossip_json: str = ""
    silence_s: float | None = None
    stillness_s: float = STILLNESS_S
    away_s: float = 0.0

    def chunk_elements(self, elements: int) -> int:
        """Return the most elements of a chunk of a model, else the least that buffers have.

        Args:
            elements: of the model that is served, or that gossips; 0 where there is none.
        """
        filling = filling_elements(elements, self.deep) if elements else 0
        return min(max(filling, self.least_chunk_elements), self.most_chunk_elements)

    @property
    def merge(self) -> AnyMerge | None:
        """The merge rule; None for the mean."""
        if not self.merge_json:
            return None
        from anabranch.merge import AnyMerge

        found: AnyMerge = msgspec.json.decode(self.merge_json, type=AnyMerge)
        return found

    @property
    def gossip(self) -> Gossip | None:
        """How sites gossip; None where they do not."""
        if not self.gossip_json:
            return None
        from anabranch.period import Gossip

        return msgspec.json.decode(self.gossip_json, type=Gossip)


_decoder = msgspec.json.Decoder(Settings)


def dumps(settings: Settings) -> str:
    """Return settings as text; ``loads`` reads it."""
    return msgspec.json.encode(settings).decode()


def loads(text: str) -> Settings:
    """Read what ``dumps`` wrote.

    Raises:
        RunAborted: it is something else: the scheduler runs a scenario.
    """
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        raise RunAborted(
            "this scheduler runs a scenario, whose sites are started by `anabranch site`; start "
            "one for a group by `anabranch scheduler --overlay FILE`"
        ) from None
