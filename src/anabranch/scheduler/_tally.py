"""What has happened in a run so far, counted from its events. Pure."""

from __future__ import annotations

import math
from statistics import fmean

from anabranch.log import events


class Tally:
    """Counts for people and for metrics; nothing in the run depends on them.

    Attributes:
        replans: plans issued after the first.
        updates: that became part of a served model.
        losses: how many times a site was lost.
        refused: messages that were refused.
        loss: the latest of each site that told of one, NaN where it was no finite number, and the
            step, update or round it was of.
        accuracy: the latest of each site that told of one, and the step or round it was after.
    """

    def __init__(self) -> None:
        self.replans = 0
        self.updates = 0
        self.losses = 0
        self.refused = 0
        self.loss: dict[int, tuple[float, int]] = {}
        self.accuracy: dict[int, tuple[float, int]] = {}

    @property
    def mean_loss(self) -> float | None:
        """The mean of each site's latest loss, NaN if one is; None before the first."""
        return fmean(loss for loss, _ in self.loss.values()) if self.loss else None

    def note(self, event: events.Event) -> None:
        """Count an event."""
        match event:
            case events.StepDone(site=site, round=step, loss=float(loss)):
                self.loss[site] = loss, step
            case events.StepDone(site=site, round=step, loss=None) if site in self.loss:
                self.loss[site] = math.nan, step  # others without a loss learn nothing
            case events.ProceedAsked(site=site, update=step, loss=float(loss)):
                self.loss[site] = loss, step
            case events.Evaluated(site=site, round=round, accuracy=accuracy, step=step):
                self.accuracy[site] = accuracy, round if step is None else step
            case events.PlanIssued():
                self.replans += 1
            case events.UpdateApplied():
                self.updates += 1
            case events.SiteLost():
                self.losses += 1
            case events.MessageRefused():
                self.refused += 1
