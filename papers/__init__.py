"""The papers' tables and figures, made again: one short script for each.

A script is a module of its paper's package, and has ``EXPERIMENTS``. The scripts are imported when
``papers.EXPERIMENTS`` is first used: they need PyTorch, and a benchmark that writes JSON does not.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from papers._experiment import Experiment
    from papers._lab import Lab
    from papers._record import NotRecorded, Record
    from papers._result import Result, Row, comparison, page, write_result
    from papers._scripts import EXPERIMENTS, find
    from papers._trial import Outcome, Trial, WorkerOutcome, seconds
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "_experiment": ["Experiment"],
            "_lab": ["Lab"],
            "_record": ["NotRecorded", "Record"],
            "_result": ["Result", "Row", "comparison", "page", "write_result"],
            "_scripts": ["EXPERIMENTS", "find"],
            "_trial": ["Outcome", "Trial", "WorkerOutcome", "seconds"],
        },
    )

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Lab",
    "NotRecorded",
    "Outcome",
    "Record",
    "Result",
    "Row",
    "Trial",
    "WorkerOutcome",
    "comparison",
    "find",
    "page",
    "seconds",
    "write_result",
]
