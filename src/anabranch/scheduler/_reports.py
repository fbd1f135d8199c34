"""Checks the events that a site reports for the log: only its own, and of few kinds. Pure."""

from __future__ import annotations

from anabranch.log import events
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage


def reported(site: int, encoded: tuple[bytes, ...]) -> list[events.Event]:
    """Return the events that a site reports for the log.

    Raises:
        MalformedMessage: a report that is no event.
        OutOfPlaceMessage: an event that sites do not report, or one of another site.
    """
    known: list[events.Event] = []
    for data in encoded:
        try:
            event = events.decode(data.decode())
        except ValueError as error:
            raise MalformedMessage(f"a report that is no event: {error}") from None
        match event:
            case (
                events.StepDone()
                | events.Evaluated()
                | events.LabelsHeld()
                | events.MessageRefused()
                | events.TransportChosen()
            ):
                about: int | None = event.site
            case events.LinkBytes():
                about = event.source
            case _:
                raise OutOfPlaceMessage(f"a site cannot report {type(event).__name__}")
        if about != site:
            raise OutOfPlaceMessage(f"site {site} reports what happened at site {about}")
        known.append(event)
    return known
