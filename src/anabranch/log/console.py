"""A scheduler's messages to its operator: sites that join, awaited sites, faults.

Each message is a `Line`: a sentence for a terminal. For machines, `logfmt` writes it with a time
and fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from anabranch.log import events
from anabranch.log import status as statuses
from anabranch.log.status import AwaitedSite, Status

Level = Literal["info", "warning", "error"]
Value = str | int | float | bool | None
_BARE = re.compile(r"[^\s\"=\\]+")


@dataclass(frozen=True, slots=True)
class Line:
    """A message to the operator.

    Args:
        event: the kind of event, one word or several joined by underscores.
        text: the message as a sentence.
        level: its severity.
        fields: values that a machine may look for; None leaves a field out.
    """

    event: str
    text: str
    level: Level = "info"
    fields: Mapping[str, Value] = field(default_factory=dict)


def logfmt(line: Line, at: datetime) -> str:
    """Return a line for machines: the time in UTC, then keys and values.

    >>> logfmt(Line("joined", "paris joined", fields={"site": "paris"}),
    ...        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    'time=2026-01-02T03:04:05.000Z level=info event=joined site=paris msg="paris joined"'
    """
    time = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    pairs: dict[str, Value] = {"time": time, "level": line.level, "event": line.event}
    pairs |= line.fields
    pairs["msg"] = line.text
    return " ".join(f"{key}={_value(value)}" for key, value in pairs.items() if value is not None)


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # JSON escapes keep the line one line, whatever a peer has put into a name or a reason.
    is_bare = _BARE.fullmatch(text) and text.isprintable()
    return text if is_bare else json.dumps(text, ensure_ascii=False)


class Console:
    """Writes a line for each of the most important events.

    Args:
        names: of the sites, by index.
        say: called with each line.
    """

    def __init__(self, names: Sequence[str], say: Callable[[Line], None]) -> None:
        self._names = names
        self._say = say
        self._missing = dict.fromkeys(names)

    def listening(self) -> None:
        """Write the names of the awaited sites."""
        if self._missing:
            awaited = ",".join(self._missing)
            text = f"waiting for {', '.join(self._missing)}"
            self._say(Line("waiting", text, fields={"waits_for": awaited}))

    def metrics(self, where: str) -> None:
        """Write the address of the metrics."""
        self._say(Line("metrics", f"metrics at http://{where}", fields={"address": where}))

    def tell(self, event: events.Event) -> None:
        """Write a line for an event, if the operator should know it at once."""
        line = self._line(event)
        if line is not None:
            self._say(line)

    def _line(self, event: events.Event) -> Line | None:
        match event:
            case events.SiteJoined(name=name, address=address):
                self._missing.pop(name, None)
                waits = f"; waiting for {', '.join(self._missing)}" if self._missing else ""
                fields = {
                    "site": name,
                    "address": address,
                    "waits_for": ",".join(self._missing) or None,
                }
                return Line("joined", f"{name} joined from {address}{waits}", fields=fields)
            case events.SiteInStep():
                waits = f"; the others wait for it: {event.why}" if event.kept else ""
                name = self._names[event.site]
                return Line("in_step", f"{name} is in step{waits}", fields={"site": name})
            case events.SiteLost():
                name = self._names[event.site]
                self._missing[name] = None
                text = f"{name} is lost: {event.detail}"
                return Line("lost", text, "warning", {"site": name, "goes_on": event.goes_on})
            case events.SiteLeft():
                name = self._names[event.site]
                text = f"{name} has left; the others go on"
                return Line("left", text, fields={"site": name})
            case events.ExchangeRepaired():
                members = ", ".join(self._names[site] for site in event.members)
                text = (
                    f"exchange {event.number} was completed among {members}: "
                    f"{event.reduced_elements} elements reduced again, {event.spread_elements} "
                    "spread from a site that had them"
                )
                return Line("repaired", text, "warning", {"exchange": event.number})
            case events.SiteCut():
                name = self._names[event.site]
                text = f"the connection of {name} broke: {event.detail}"
                return Line("disconnected", text, "warning", {"site": name})
            case events.SiteResumed():
                name = self._names[event.site]
                fields, way = {"site": name}, ""
                if event.through is not None:
                    fields["through"] = self._names[event.through]
                    way = f", through {fields['through']}: its own way here is cut"
                return Line("resumed", f"{name} is connected again{way}", fields=fields)
            case events.SchedulerRestarted():
                self._missing.clear()
                names = [self._names[site] for site in event.awaited]
                text = f"started again; waits for {', '.join(names)}"
                return Line("restarted", text, fields={"waits_for": ",".join(names)})
            case events.PlanIssued():
                text = f"plan {event.version}: {event.why}"
                return Line("plan", text, fields={"plan": event.version})
            case events.MessageRefused():
                text = f"refused a message: {event.detail}"
                return Line("refused", text, "warning", {"error": event.error})
        return None

    def progress(self, before: Status, now: Status, seconds: float) -> bool:
        """Write the progress between two statuses, if there is news; return whether there is."""
        text = statuses.progress(before, now, seconds)
        if text is not None:
            fields: dict[str, Value] = {
                "exchanges": now.exchanges,
                "exchanges_per_s": (now.exchanges - before.exchanges) / seconds,
                "bytes": now.exchanged_bytes,
                "updates": now.updates or None,
                "members": now.members,
                "plan": now.plan_version,
                "waits_for": ",".join(now.waits_for) or None,
            }
            self._say(Line("progress", text, fields=fields))
        return text is not None

    def awaited(self, wait: AwaitedSite) -> None:
        """Write that sites have waited long for another site."""
        fields: dict[str, Value] = {
            "site": wait.site,
            "seconds": wait.seconds,
            "at": wait.at,
            "waiting": ",".join(wait.waiting),
        }
        self._say(Line("awaited", statuses.awaited(wait), "warning", fields))

    def ended(self, error: str | None, goes_on: bool = False) -> None:
        """Write how the run ended, or why the scheduler ended while its group continues."""
        if error is None:
            self._say(Line("ended", "every site has left"))
        elif goes_on:
            self._say(Line("terminated", f"{error}; its sites wait for that"))
        else:
            self._say(Line("ended", f"ended early: {error}", "error"))
