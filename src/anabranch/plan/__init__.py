"""Plans: where an aggregate travels. Pure: an overlay in, a plan out."""

from anabranch.plan._model import NO_PARENT, Chunk, Plan, PlanError, Tree, deal

__all__ = ["NO_PARENT", "Chunk", "Plan", "PlanError", "Tree", "deal"]
