"""A scenario: one TOML file that describes a run, in either world.

Here is what a whole scenario needs. Where aggregates travel is a planner, of `plan`; who may
proceed when, and how much work each has, are values of `pace`. Other tables it is put together
from are in the modules:

- `awareness`: how the scheduler learns of the network;
- `tasks`: what the sites do.
"""

from anabranch.run.scenario._checks import (
    ScenarioError,
    check_real,
    check_simulable,
    check_twin,
)
from anabranch.run.scenario._load import load, loads
from anabranch.run.scenario._model import (
    Adaptive,
    ByShare,
    Scenario,
    Serve,
    Stop,
    compute_model,
    decode,
    encode,
)

__all__ = [
    "Adaptive",
    "ByShare",
    "Scenario",
    "ScenarioError",
    "Serve",
    "Stop",
    "check_real",
    "check_simulable",
    "check_twin",
    "compute_model",
    "decode",
    "encode",
    "load",
    "loads",
]
