"""The record of a run: typed events, the log that keeps them, summaries, figures and reports.

Importing this package does not import plotly; writing a report does.
"""

from anabranch.record.awareness import MeasuredRate, measured_rates
from anabranch.record.events import (
    Evaluated,
    Event,
    FaultInjected,
    LinkBytes,
    LinkChanged,
    LinkMeasured,
    MessageRefused,
    PlanIssued,
    ProceedAsked,
    RoundBegan,
    RoundDone,
    RunEnded,
    RunStarted,
    SiteJoined,
    SiteLost,
    StepDone,
    TransportChosen,
    UnknownEvent,
    UpdateApplied,
    UpdateCame,
    UpdateDiscarded,
    WorkerWent,
)
from anabranch.record.log import EventLog, LogError, fingerprint, read_events
from anabranch.record.report import write_plan_page, write_report, write_twin_report
from anabranch.record.summary import RunSummary, Wait, summarise
from anabranch.record.twin import AGREEMENT, TwinRow, compare, median_error, worst_row

__all__ = [
    "AGREEMENT",
    "Evaluated",
    "Event",
    "EventLog",
    "FaultInjected",
    "LinkBytes",
    "LinkChanged",
    "LinkMeasured",
    "LogError",
    "MeasuredRate",
    "MessageRefused",
    "PlanIssued",
    "ProceedAsked",
    "RoundBegan",
    "RoundDone",
    "RunEnded",
    "RunStarted",
    "RunSummary",
    "SiteJoined",
    "SiteLost",
    "StepDone",
    "TransportChosen",
    "TwinRow",
    "UnknownEvent",
    "UpdateApplied",
    "UpdateCame",
    "UpdateDiscarded",
    "Wait",
    "WorkerWent",
    "compare",
    "fingerprint",
    "measured_rates",
    "median_error",
    "read_events",
    "summarise",
    "worst_row",
    "write_plan_page",
    "write_report",
    "write_twin_report",
]
