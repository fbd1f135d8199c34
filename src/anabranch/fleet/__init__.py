"""The seconds of a step at each site: a scenario's ``[compute]``, and the model made from it.

Pure, and the same for a simulation in virtual time and for real processes, which wait for the rest
of a step's time. A step's time has three parts: *work*, in seconds at nominal speed, with jitter;
*slowdowns*, which stretch the work while they last; and an *added delay* after it, which nothing
stretches.
"""

from anabranch.fleet._compute import Compute, ComputeModel, SiteCompute
from anabranch.fleet._distributions import (
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    Uniform,
    drawn_share,
)
from anabranch.fleet._errors import ComputeError
from anabranch.fleet._slowdowns import STEADY, Slowdowns
from anabranch.fleet._speeds import uneven_samples_per_s

__all__ = [
    "STEADY",
    "Compute",
    "ComputeError",
    "ComputeModel",
    "Constant",
    "Distribution",
    "Exponential",
    "Lognormal",
    "SiteCompute",
    "Slowdowns",
    "Uniform",
    "drawn_share",
    "uneven_samples_per_s",
]
