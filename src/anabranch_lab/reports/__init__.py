"""Figures, tables and reports of a run's log, and of a simulated run beside a measured one.

Importing this package does not import plotly; writing a report does.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch_lab.reports._awareness import MeasuredRate, measured_rates
    from anabranch_lab.reports._twin import AGREEMENT, TwinRow, compare, median_error, worst_row
    from anabranch_lab.reports.report import write_plan_page, write_report, write_twin_report
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "_awareness": ["MeasuredRate", "measured_rates"],
            "report": ["write_plan_page", "write_report", "write_twin_report"],
            "_twin": ["AGREEMENT", "TwinRow", "compare", "median_error", "worst_row"],
        },
    )

__all__ = [
    "AGREEMENT",
    "MeasuredRate",
    "TwinRow",
    "compare",
    "measured_rates",
    "median_error",
    "worst_row",
    "write_plan_page",
    "write_report",
    "write_twin_report",
]
