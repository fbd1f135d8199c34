"""What a scheduler tells people while it runs: who joined, who is awaited, what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.record import events


class Console:
    """Says the most important events, a line each.

    Args:
        names: of the sites, by index.
        say: called with each line.
    """

    def __init__(self, names: Sequence[str], say: Callable[[str], None]) -> None:
        self._names = names
        self._say = say
        self._missing = dict.fromkeys(names)

    def listening(self) -> None:
        """Say who is awaited."""
        if self._missing:
            self._say(f"waiting for {', '.join(self._missing)}")

    def tell(self, event: events.Event) -> None:
        """Say what happened, if it is for people to know at once."""
        match event:
            case events.SiteJoined():
                self._missing.pop(event.name, None)
                waits = f"; waiting for {', '.join(self._missing)}" if self._missing else ""
                self._say(f"{event.name} joined from {event.address}{waits}")
            case events.SiteInStep():
                waits = f"; the others wait for it: {event.why}" if event.kept else ""
                self._say(f"{self._names[event.site]} is in step{waits}")
            case events.SiteLost():
                name = self._names[event.site]
                self._missing[name] = None
                self._say(f"{name} is lost: {event.detail}")
            case events.SiteLeft():
                self._say(f"{self._names[event.site]} has left; the others go on")
            case events.ExchangeRepaired():
                members = ", ".join(self._names[site] for site in event.members)
                self._say(
                    f"exchange {event.number} was completed among {members}: "
                    f"{event.reduced_elements} elements reduced again, {event.spread_elements} "
                    "spread from a site that had them"
                )
            case events.SiteCut():
                self._say(f"the connection of {self._names[event.site]} broke: {event.detail}")
            case events.SiteResumed():
                self._say(f"{self._names[event.site]} is connected again")
            case events.SchedulerRestarted():
                self._missing.clear()
                names = ", ".join(self._names[site] for site in event.awaited)
                self._say(f"started again; waits for {names}")
            case events.PlanIssued():
                self._say(f"plan {event.version}: {event.why}")
            case events.MessageRefused():
                self._say(f"refused a message: {event.detail}")

    def ended(self, error: str | None) -> None:
        """Say how it ended."""
        self._say("every site has left" if error is None else f"ended early: {error}")
