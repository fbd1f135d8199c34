"""Which node has a message, and whether its reply counts. Pure.

A framework moves messages and knows nodes by numbers of its own. Between it and the
:class:`~anabranch.flower._federation.Federation` stands what both leave open: a node has one
message at a time; nodes come, go, fail, or fall silent; and what comes late has to be told apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from anabranch.flower._federation import Arrays, Federation, Outcome


class NoNodesLeft(RuntimeError):
    """No node that has taken part may go on to: all are barred, or failed too often."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line to log."""

    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What is to be done.

    Args:
        send: nodes to which the model, as it is now, is to be sent; say of each whether it is
            ``sent`` or ``unsent``.
        lines: what to log.
        took: whether the model that was returned was taken; a pace may discard it yet.
    """

    send: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()
    took: bool = False


@dataclass(slots=True)
class _Out:
    """A message that is out.

    Args:
        node: who has it.
        since_s: when it was sent.
        counts: whether its reply will, or its node was given up.
    """

    node: int
    since_s: float
    counts: bool = True


class Conversation:
    """Who has a message, in one run; times never run backwards.

    It holds a model for each reply that waits for its step, and each version of the model that a
    node computes on; of nodes that are gone a few numbers.

    Args:
        federation: what counts, and who goes on.
        silent_s: how long a node may take to reply; then the others go on without it. It may take
            part again once its reply has come, which does not count.
        failures: after so many failures in a row a node takes part no more.
        at_least: how many nodes have to be there before it begins.
    """

    def __init__(
        self, federation: Federation, silent_s: float, failures: int, at_least: int
    ) -> None:
        self._federation = federation
        self._silent_s = silent_s
        self._most_failures = failures
        self._at_least = at_least
        self._began = False
        self._waits = ""
        self._there: frozenset[int] = frozenset()
        self._out: dict[str, _Out] = {}
        self._failed: dict[int, int] = {}  # how often in a row
        self._excluded: set[int] = set()
        self._send: dict[int, None] = {}
        self._lines: list[Line] = []

    @property
    def out(self) -> tuple[str, ...]:
        """The messages whose replies to ask for, also those that will not count."""
        return tuple(self._out)

    def there(self, nodes: Collection[int], now_s: float) -> Output:
        """Take note of all nodes that are there; those that are new take part.

        Raises:
            NoNodesLeft: see there.
        """
        self._there = frozenset(nodes)
        if not self._began and len(self._there) < self._at_least:
            self._wait(f"waiting for nodes: {len(self._there)} of {self._at_least} are there")
            return self._output()
        self._began = True
        for out in list(self._out.values()):
            if out.counts and out.node not in self._there:
                self._lose(out.node, "is gone", now_s)
        busy = {out.node for out in self._out.values()}
        refused = self._excluded | self._federation.barred
        for node in sorted(self._there - busy - refused):
            if node not in self._federation:
                self._say(f"node {node} takes part")
                self._follow(self._federation.joined(node, now_s), now_s)
        known = self._federation.known
        if known <= refused:
            raise NoNodesLeft(
                f"of {len(known)} nodes none may take part: {len(self._federation.barred)} are "
                f"barred as outliers, {len(self._excluded)} failed {self._most_failures} times in "
                "a row, for which see the log"
            )
        if len(self._federation):
            self._waits = ""
        else:
            self._wait("waiting for nodes: none of those that may take part is there")
        return self._output()

    def sent(self, node: int, message: str, now_s: float) -> None:
        """Take note of the message that a node has."""
        self._out[message] = _Out(node, now_s)

    def unsent(self, node: int, now_s: float) -> Output:
        """Go on without a node that takes no message."""
        self._lose(node, "takes no message", now_s)
        return self._output()

    def returned(self, message: str, arrays: Arrays, examples: float, now_s: float) -> Output:
        """Take the model that is the reply to a message; each reply counts once."""
        out = self._out.pop(message, None)
        if out is None:
            return self._output()
        if not out.counts:
            self._say_late(out.node, now_s - out.since_s)
            return self._output()
        try:
            outcome = self._federation.returned(out.node, arrays, examples, now_s)
        except ValueError as error:
            self._fail(out.node, str(error), now_s)
            return self._output()
        self._failed.pop(out.node, None)
        self._follow(outcome, now_s)
        return self._output(took=True)

    def failed(self, message: str, why: str, now_s: float, counts: bool = True) -> Output:
        """Take note that a message has no model for its reply.

        Args:
            message: which.
            why: what is said of it.
            now_s: the time.
            counts: whether its node failed, or only the message was lost.
        """
        out = self._out.pop(message, None)
        if out is not None and not out.counts:
            took_s = now_s - out.since_s
            self._say(f"node {out.node}, given up before, failed after {took_s:.1f} s: {why}")
        elif out is not None and counts:
            self._fail(out.node, why, now_s)
        elif out is not None:
            self._lose(out.node, why, now_s)
        return self._output()

    def go_on(self, until: float, now_s: float) -> Output:
        """Let the model have versions up to a later one, and do what has waited for that."""
        self._follow(self._federation.go_on(until, now_s), now_s)
        return self._output()

    def look(self, now_s: float) -> Output:
        """Do what time alone makes due: a turn, or to give up who is silent."""
        for out in list(self._out.values()):
            if out.counts and now_s - out.since_s > self._silent_s:
                self._lose(out.node, f"has been silent for {self._silent_s:g} s", now_s)
        if now_s >= self._federation.due_s:
            self._follow(self._federation.look(now_s), now_s)
        return self._output()

    def _fail(self, node: int, why: str, now_s: float) -> None:
        times = self._failed[node] = self._failed.get(node, 0) + 1
        if times >= self._most_failures:
            self._excluded.add(node)
            why += f"; it has failed {times} times in a row, and takes part no more"
        self._lose(node, f"failed: {why}", now_s)

    def _lose(self, node: int, why: str, now_s: float) -> None:
        """Go on without a node, whose reply will not count if it comes."""
        self._forget(node)
        self._say(f"node {node} {why}; the others go on without it", warns=True)
        if node in self._federation:
            self._follow(self._federation.left(node, now_s), now_s)

    def _forget(self, node: int) -> None:
        self._send.pop(node, None)
        for out in self._out.values():
            if out.node == node:
                out.counts = False

    def _follow(self, outcome: Outcome, now_s: float) -> None:
        for node in outcome.discarded:
            is_here = node in self._federation
            why = "its group's round is over" if is_here else "the node is gone"
            self._say(f"the model of node {node} does not count: {why}")
        for node in outcome.barred:
            self._say(f"node {node} is an outlier, and takes part no more", warns=True)
            self._forget(node)
        for node in outcome.readmitted:
            self._say(f"node {node} may take part again")
        for node in outcome.receivers:
            if node in self._there:
                self._send[node] = None
            else:
                self._lose(node, "is gone", now_s)

    def _wait(self, why: str) -> None:
        """Say what is waited for, once."""
        if why != self._waits:
            self._say(why)
        self._waits = why

    def _say(self, text: str, warns: bool = False) -> None:
        self._lines.append(Line(text, warns))

    def _say_late(self, node: int, took_s: float) -> None:
        self._say(f"the reply of node {node} came after {took_s:.1f} s, and does not count")

    def _output(self, took: bool = False) -> Output:
        output = Output(tuple(self._send), tuple(self._lines), took)
        self._send, self._lines = {}, []
        return output
