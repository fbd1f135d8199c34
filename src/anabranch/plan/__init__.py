"""Plans: where an aggregate travels. Pure: an overlay in, a plan out."""

from anabranch.plan._auxiliary import algorithm_3, disjoint_paths, with_auxiliary
from anabranch.plan._balanced import balanced
from anabranch.plan._delay import down_delays_s_per_bit, up_delays_s_per_bit
from anabranch.plan._fapt import fapt, qualities_bps
from anabranch.plan._files import dumps, loads
from anabranch.plan._limit import limit_rate_bps, limit_s, share_of_limit
from anabranch.plan._load import Port, link_load, port_bps, port_load, steady_rate_bps
from anabranch.plan._model import ABSENT, NO_PARENT, Chunk, Plan, PlanError, Tree, deal
from anabranch.plan._packed import packed
from anabranch.plan._predict import Prediction, predict
from anabranch.plan._reach import (
    Place,
    children_towards,
    in_between,
    places_down,
    places_up,
    restrict,
)
from anabranch.plan._routes import relay_routes
from anabranch.plan._spanning import spanning
from anabranch.plan._star import star
from anabranch.plan._stream import cut, interleave

__all__ = [
    "ABSENT",
    "NO_PARENT",
    "Chunk",
    "Place",
    "Plan",
    "PlanError",
    "Port",
    "Prediction",
    "Tree",
    "algorithm_3",
    "balanced",
    "children_towards",
    "cut",
    "deal",
    "disjoint_paths",
    "down_delays_s_per_bit",
    "dumps",
    "fapt",
    "in_between",
    "interleave",
    "limit_rate_bps",
    "limit_s",
    "link_load",
    "loads",
    "packed",
    "places_down",
    "places_up",
    "port_bps",
    "port_load",
    "predict",
    "qualities_bps",
    "relay_routes",
    "restrict",
    "share_of_limit",
    "spanning",
    "star",
    "steady_rate_bps",
    "up_delays_s_per_bit",
    "with_auxiliary",
]
