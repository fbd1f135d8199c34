"""The record of a run: typed events, the log that keeps them, summaries, figures and reports.

Importing this package does not import plotly; writing a report does.
"""

from anabranch.record.events import (
    Evaluated,
    Event,
    LinkBytes,
    MessageRefused,
    RoundDone,
    RunEnded,
    RunStarted,
    SiteJoined,
    SiteLost,
    StepDone,
    UnknownEvent,
)
from anabranch.record.log import EventLog, LogError, read_events
from anabranch.record.report import write_plan_page, write_report
from anabranch.record.summary import RunSummary, summarise

__all__ = [
    "Evaluated",
    "Event",
    "EventLog",
    "LinkBytes",
    "LogError",
    "MessageRefused",
    "RoundDone",
    "RunEnded",
    "RunStarted",
    "RunSummary",
    "SiteJoined",
    "SiteLost",
    "StepDone",
    "UnknownEvent",
    "read_events",
    "summarise",
    "write_plan_page",
    "write_report",
]
