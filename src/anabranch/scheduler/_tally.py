"""Counts of a run's events so far. Pure."""

from __future__ import annotations

import math
from statistics import fmean

from anabranch.log import events


class Tally:
    """Counts for people and for metrics; nothing in the run depends on them.

    Attributes:
        replans: plans issued after the first.
        updates: updates applied to a served model.
        losses: losses of sites; a site that is lost twice counts twice.
        refused: refused messages.
        loss: by site, its latest loss, and the loss's step, update or round; NaN if not finite.
        accuracy: by site, its latest accuracy, and the step or round after which it was measured.
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
        """The mean of the sites' latest losses, NaN if one is; None before the first."""
        return fmean(loss for loss, _ in self.loss.values()) if self.loss else None

    def note(self, event: events.Event) -> None:
        """Count an event."""
        match event:
            case events.StepDone(site=site, round=step, loss=float(loss)):
                self.loss[site] = loss, step
            case events.StepDone(site=site, round=step, loss=None) if site in self.loss:
                # This site tells its losses, so one that is missing was not finite.
                self.loss[site] = math.nan, step
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
