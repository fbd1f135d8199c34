"""All planners in one list."""

from __future__ import annotations

from typing import get_args

from anabranch.plan._balanced import Balanced
from anabranch.plan._fapt import Fapt
from anabranch.plan._files import FromFile
from anabranch.plan._forest_route import ForestRoute
from anabranch.plan._packed import Packed
from anabranch.plan._ring import Ring
from anabranch.plan._spanning import Spanning
from anabranch.plan._star import Star

AnyPlanner = Star | Balanced | Spanning | Ring | Fapt | Packed | ForestRoute | FromFile
PLANNERS: tuple[type[AnyPlanner], ...] = get_args(AnyPlanner)
