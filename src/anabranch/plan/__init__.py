"""Plans: where an aggregate travels. Pure: an overlay in, a plan out.

A planner is a frozen value with a method that makes a plan (:class:`Planner`). One list,
:data:`AnyPlanner`, names all planners for scenario files, the command line and tests.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch.plan._auxiliary import (
        Auxiliary,
        PathSearch,
        algorithm_3,
        disjoint_paths,
        with_auxiliary,
    )
    from anabranch.plan._balanced import Balanced, balanced
    from anabranch.plan._cores import CORE_BPS, within_cores
    from anabranch.plan._delay import down_delays_s_per_bit, subtree_delays, up_delays_s_per_bit
    from anabranch.plan._fapt import Fapt, fapt
    from anabranch.plan._files import FromFile, dumps, loads
    from anabranch.plan._forest import AggregationTree, Forest, forest
    from anabranch.plan._forest_cycle import Cycle, cycle
    from anabranch.plan._forest_eda import EdaForest
    from anabranch.plan._forest_exact import ExactForest
    from anabranch.plan._forest_given import GivenForest
    from anabranch.plan._forest_local import LocalForest
    from anabranch.plan._forest_problem import ForestProblem
    from anabranch.plan._forest_route import (
        AnyForestSearch,
        ForestRoute,
        forest_costs,
        with_kept_groups,
    )
    from anabranch.plan._leaves import with_leaves
    from anabranch.plan._limit import least_latency_s, limit_rate_bps, limit_s, share_of_limit
    from anabranch.plan._load import Port, link_load, port_bps, port_load, steady_rate_bps
    from anabranch.plan._model import (
        ABSENT,
        NO_PARENT,
        Chunk,
        Group,
        Plan,
        PlanError,
        Tree,
        deal,
        holders,
    )
    from anabranch.plan._packed import Packed, bound_rate_bps, packed
    from anabranch.plan._planner import Planner
    from anabranch.plan._planners import PLANNERS, AnyPlanner
    from anabranch.plan._predict import Prediction, predict
    from anabranch.plan._reach import (
        Place,
        children_towards,
        in_between,
        places_down,
        places_up,
        restrict,
    )
    from anabranch.plan._remainder import Remainder, remainder
    from anabranch.plan._ring import Ring, ring
    from anabranch.plan._routes import relay_routes
    from anabranch.plan._spanning import Spanning, spanning
    from anabranch.plan._star import Star, star
    from anabranch.plan._stream import (
        LEAST_CHUNK_ELEMENTS,
        cut,
        deal_tensors,
        filling_elements,
        interleave,
    )
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "_auxiliary": [
                "Auxiliary",
                "PathSearch",
                "algorithm_3",
                "disjoint_paths",
                "with_auxiliary",
            ],
            "_balanced": ["Balanced", "balanced"],
            "_cores": ["CORE_BPS", "within_cores"],
            "_delay": ["down_delays_s_per_bit", "subtree_delays", "up_delays_s_per_bit"],
            "_fapt": ["Fapt", "fapt"],
            "_files": ["FromFile", "dumps", "loads"],
            "_forest": ["AggregationTree", "Forest", "forest"],
            "_forest_cycle": ["Cycle", "cycle"],
            "_forest_eda": ["EdaForest"],
            "_forest_exact": ["ExactForest"],
            "_forest_given": ["GivenForest"],
            "_forest_local": ["LocalForest"],
            "_forest_problem": ["ForestProblem"],
            "_forest_route": ["AnyForestSearch", "ForestRoute", "forest_costs", "with_kept_groups"],
            "_leaves": ["with_leaves"],
            "_limit": ["least_latency_s", "limit_rate_bps", "limit_s", "share_of_limit"],
            "_load": ["Port", "link_load", "port_bps", "port_load", "steady_rate_bps"],
            "_model": [
                "ABSENT",
                "NO_PARENT",
                "Chunk",
                "Group",
                "Plan",
                "PlanError",
                "Tree",
                "deal",
                "holders",
            ],
            "_packed": ["Packed", "bound_rate_bps", "packed"],
            "_planner": ["Planner"],
            "_planners": ["PLANNERS", "AnyPlanner"],
            "_predict": ["Prediction", "predict"],
            "_reach": [
                "Place",
                "children_towards",
                "in_between",
                "places_down",
                "places_up",
                "restrict",
            ],
            "_remainder": ["Remainder", "remainder"],
            "_ring": ["Ring", "ring"],
            "_routes": ["relay_routes"],
            "_spanning": ["Spanning", "spanning"],
            "_star": ["Star", "star"],
            "_stream": [
                "LEAST_CHUNK_ELEMENTS",
                "cut",
                "deal_tensors",
                "filling_elements",
                "interleave",
            ],
        },
    )

__all__ = [
    "ABSENT",
    "CORE_BPS",
    "LEAST_CHUNK_ELEMENTS",
    "NO_PARENT",
    "PLANNERS",
    "AggregationTree",
    "AnyForestSearch",
    "AnyPlanner",
    "Auxiliary",
    "Balanced",
    "Chunk",
    "Cycle",
    "EdaForest",
    "ExactForest",
    "Fapt",
    "Forest",
    "ForestProblem",
    "ForestRoute",
    "FromFile",
    "GivenForest",
    "Group",
    "LocalForest",
    "Packed",
    "PathSearch",
    "Place",
    "Plan",
    "PlanError",
    "Planner",
    "Port",
    "Prediction",
    "Remainder",
    "Ring",
    "Spanning",
    "Star",
    "Tree",
    "algorithm_3",
    "balanced",
    "bound_rate_bps",
    "children_towards",
    "cut",
    "cycle",
    "deal",
    "deal_tensors",
    "disjoint_paths",
    "down_delays_s_per_bit",
    "dumps",
    "fapt",
    "filling_elements",
    "forest",
    "forest_costs",
    "holders",
    "in_between",
    "interleave",
    "least_latency_s",
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
    "relay_routes",
    "remainder",
    "restrict",
    "ring",
    "share_of_limit",
    "spanning",
    "star",
    "steady_rate_bps",
    "subtree_delays",
    "up_delays_s_per_bit",
    "with_auxiliary",
    "with_kept_groups",
    "with_leaves",
    "within_cores",
]
