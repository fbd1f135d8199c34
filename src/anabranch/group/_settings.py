"""Settings that the scheduler sends to each joining site, and the site's parts built from them.

Only `Service` makes them, for groups and scenarios. Values that differ by site, such as its model,
are arguments of the methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from anabranch._typed_toml import decode_json
from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.partition import Mixing, Rule
from anabranch.exchange.terms import Wire
from anabranch.net.errors import MalformedMessage
from anabranch.net.silence import STILLNESS_S
from anabranch.plan import Auxiliary, filling_elements
from anabranch.site.agent import KEPT_ELEMENTS, Transport
from anabranch.site.meter import Measuring, Meter
from anabranch.site.serving import ServedModel

if TYPE_CHECKING:
    from anabranch.merge import AnyMerge
    from anabranch.period import Gossip

# A site's links may have more latency and a higher rate than its group's overlay says.
_RELAYED_BYTES = 8_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sites send, measure, serve and gossip, the same at all of them.

    Attributes:
        deep: whether the trees are many and deep.
        least_chunk_elements, most_chunk_elements: bounds of a chunk of any buffer.
        cuts_tensors: whether no chunk of an all-reduce has elements of two tensors.
        under_way_bytes: limit on the buffers of concurrent exchanges; a larger one runs alone.
        auxiliary: how many chunks auxiliary paths take; None where there are none.
        measuring: how a site measures its links; None where it measures nothing.
        assumes_rates: whether the overlay's rates are placeholders.
        workers: number of sites that push updates to a served model; 0 if no model is served.
        added_up: the workers whose updates are summed on the way, where the pace is a barrier.
        ahead: how many updates a worker may compute ahead.
        mixes: what servers combine in a step, see :class:`anabranch.scheduler.paced.Serve`.
        merge_json: the merge rule; empty for the mean. JSON, so that a site imports
            :mod:`anabranch.merge` only if the group has a rule.
        gossip_json: how sites gossip, likewise; empty where they do not.
        silence_s: shortest silence after which a lane counts as lost, seconds; None for
            ``net.tcp.LANE_SILENCE_S``, where a loss ends the group.
        stillness_s: the same while the peer's kernel still answers.
        away_s: least time that a site waits for a lost scheduler, seconds.
        job_json: the job of a scenario's sites, as ``run/_site.py`` of the lab reads it; empty in a
            group, whose sites run users' programs.
    """

    deep: bool = False
    least_chunk_elements: int
    most_chunk_elements: int
    cuts_tensors: bool = False
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
    job_json: str = ""

    def chunk_elements(self, elements: int) -> int:
        """Return the most elements of a chunk: a size that fills the trees, within the two bounds.

        Args:
            elements: of the model that is served or gossips, or of a scenario's buffer; 0 where
                that is not known.
        """
        filling = filling_elements(elements, self.deep) if elements else 0
        return min(max(filling, self.least_chunk_elements), self.most_chunk_elements)

    def transport(
        self, elements: int = 0, strands: int = 1, room_elements: int | None = None
    ) -> Transport:
        """Return how a site's lanes send.

        Args:
            elements: see ``chunk_elements``.
            strands: connections of each lane.
            room_elements: limit on the data that may come before its exchange has begun here, if
                the program knows it; None for as much as may be under way.
        """
        most, kept = self.most_chunk_elements, KEPT_ELEMENTS
        if room_elements is None:
            kept = self.under_way_bytes // 4
            room_elements = max(kept, most)
        chunk = self.chunk_elements(elements)
        auxiliary, leases = self.auxiliary, self.leases
        relayed = 0 if self.job_json else _RELAYED_BYTES
        return Transport(chunk, most, room_elements, strands, auxiliary, kept, leases, relayed)

    @property
    def leases(self) -> bool:
        """Whether the scheduler leases exchanges to the sites of a group; not in a scenario."""
        return not (self.job_json or self.workers or self.gossip_json)

    def meter(self, elements: int = 0) -> Meter | None:
        """Return a meter of the links to a site; None where no link is measured.

        Args:
            elements: see ``chunk_elements``.
        """
        if self.measuring is None:
            return None
        return self.measuring.meter(self.chunk_elements(elements))

    def served_model(
        self,
        model: Floats,
        make_rule: Callable[[int], Rule] | None,
        averaged_elements: int = 0,
        largest_elements: int = 0,
        wire: Wire = Wire.FLOAT32,
        comes_later: bool = False,
    ) -> ServedModel:
        """Return how a model is served.

        Args:
            model, make_rule, wire, comes_later: see :class:`ServedModel`.
            averaged_elements, largest_elements: see :class:`Mixing`.
        """
        merge = self.merge
        mixing = Mixing(averaged_elements=averaged_elements, largest_elements=largest_elements)
        if merge is not None or self.mixes != "updates":
            from anabranch.group._mixing import mixing_of
            from anabranch.merge import Mean

            mixing = mixing_of(merge or Mean(), self.mixes, averaged_elements, largest_elements)
        return ServedModel(
            model,
            make_rule,
            self.workers,
            self.added_up,
            self.ahead,
            wire,
            asks_norm=merge is not None and merge.asks_norm,
            mixing=mixing,
            comes_later=comes_later,
        )

    @property
    def merge(self) -> AnyMerge | None:
        """The merge rule; None for the mean."""
        if not self.merge_json:
            return None
        from anabranch.merge import AnyMerge

        found: AnyMerge = decode_json(self.merge_json, AnyMerge)
        return found

    @property
    def gossip(self) -> Gossip | None:
        """How sites gossip; None where they do not."""
        if not self.gossip_json:
            return None
        from anabranch.period import Gossip

        found: Gossip = decode_json(self.gossip_json, Gossip)
        return found


_decoder = msgspec.json.Decoder(Settings)


def dumps(settings: Settings) -> str:
    """Return settings as text; ``loads`` reads it."""
    return msgspec.json.encode(settings).decode()


def loads(text: str) -> Settings:
    """Read what ``dumps`` wrote.

    Raises:
        MalformedMessage: the text holds no settings; says what is wrong.
    """
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"the scheduler's settings: {error}") from None
