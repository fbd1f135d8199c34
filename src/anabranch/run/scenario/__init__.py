"""A scenario: one TOML file that describes a run, in either world.

Here is what a whole scenario needs. The tables it is put together from are in the modules:

- `routes`: where aggregates travel, how chunks are dealt to trees, auxiliary paths;
- `paces`: who may proceed when, who serves the model, how much work each has;
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
from anabranch.run.scenario._model import Scenario, Stop, compute_model, encode

__all__ = [
    "Scenario",
    "ScenarioError",
    "Stop",
    "check_real",
    "check_simulable",
    "check_twin",
    "compute_model",
    "encode",
    "load",
    "loads",
]
