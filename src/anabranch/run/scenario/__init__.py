"""A scenario: one TOML file that describes a run, in either world.

Here is what a whole scenario needs. Where aggregates travel is a planner, a table of `plan`. The
other tables it is put together from are in the modules:

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
from anabranch.run.scenario._model import (
    Adaptive,
    ByShare,
    Scenario,
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
