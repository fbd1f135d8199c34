"""A scenario: one TOML file that describes a run, in either world.

This package holds the parts that only a whole scenario needs. Many of its tables are values with
the methods that carry them out. Such a table stands beside its code:

- where aggregates travel: planners, in `plan`;
- when a worker may proceed, and how much work it has: paces and loads, in `pace`;
- how the scheduler learns of the network: `scheduler.awareness`;
- how long computing takes: `fleet`; what goes wrong: `run._faults`;
- what an update weighs: `merge`;
- which samples a site draws: `anabranch_lab.tasks.sampling`, and which it holds:
  `anabranch_lab.tasks.partition`;
- what the sites do: `run.scenario.tasks`.
"""

from anabranch.scheduler.deal import Adaptive, ByShare
from anabranch.scheduler.paced import Serve
from anabranch_lab.run.scenario._checks import (
    ScenarioError,
    check_real,
    check_simulable,
    check_twin,
)
from anabranch_lab.run.scenario._effect import without_numbers
from anabranch_lab.run.scenario._load import load, loads
from anabranch_lab.run.scenario._model import (
    Graph,
    Scenario,
    Simulation,
    Stop,
    compute_model,
    encode,
    script_of,
    with_compute_times,
)

__all__ = [
    "Adaptive",
    "ByShare",
    "Graph",
    "Scenario",
    "ScenarioError",
    "Serve",
    "Simulation",
    "Stop",
    "check_real",
    "check_simulable",
    "check_twin",
    "compute_model",
    "encode",
    "load",
    "loads",
    "script_of",
    "with_compute_times",
    "without_numbers",
]
