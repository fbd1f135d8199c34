"""Track which node has a message, and whether its reply counts. Pure.

A framework moves messages, and has its own node numbers. The
:class:`~anabranch.flower._federation.Federation` decides on models. This module does the rest: a
node has one message at a time; nodes come, go, fail, or fall silent; late replies do not count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from anabranch.flower._federation import Arrays, Federation, Outcome


class NoNodesLeft(RuntimeError):
    """All nodes that have joined are barred, or have failed too often."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line to log."""

    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What the caller has to do.

    Args:
        send: nodes to send the current model to; then call ``sent`` or ``unsent`` for each.
        lines: lines to log.
        took: whether the federation took the returned model; a pace may still discard it.
    """

    send: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()
    took: bool = False


@dataclass(slots=True)
class _Out:
    """A message without a reply yet.

    Args:
        node: the node that has it.
        since_s: when it was sent.
        counts: whether its reply will count; False once its node was given up.
    """

    node: int
    since_s: float
    counts: bool = True


class Conversation:
    """The messages of one run; times never run backwards.

    Memory: a model for each reply that waits for its step, each version of the model that a node
    computes on, and a few numbers for each node that is gone.

    Args:
        federation: decides which models count, and which nodes get the next model.
        silent_s: the longest time for a reply; then the others continue without the node. It may
            join again once its reply has come, which does not count.
        failures: after so many failures in a row, a node is excluded.
        at_least: how many nodes have to be there before the run begins.
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
        """The messages to poll for replies, also those whose replies will not count."""
        return tuple(self._out)

    def there(self, nodes: Collection[int], now_s: float) -> Output:
        """Update the set of nodes that are there; new nodes join.

        Raises:
            NoNodesLeft: all known nodes are barred or excluded.
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
                self._say(f"node {node} joins")
                self._follow(self._federation.joined(node, now_s), now_s)
        known = self._federation.known
        if known <= refused:
            raise NoNodesLeft(
                f"none of {len(known)} nodes is left: {len(self._federation.barred)} are barred as "
                f"outliers, {len(self._excluded)} failed {self._most_failures} times in a row, see "
                "the log"
            )
        if len(self._federation):
            self._waits = ""
        else:
            self._wait("waiting for nodes: none that may join is there")
        return self._output()

    def sent(self, node: int, message: str, now_s: float) -> None:
        """Record the message that a node has."""
        self._out[message] = _Out(node, now_s)

    def unsent(self, node: int, now_s: float) -> Output:
        """Continue without a node that takes no message."""
        self._lose(node, "takes no message", now_s)
        return self._output()

    def returned(self, message: str, arrays: Arrays, examples: float, now_s: float) -> Output:
        """Take the model of a reply to a message; each reply counts once."""
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
        """Record that a message gets no model as its reply.

        Args:
            message: the message.
            why: the reason, for the log.
            now_s: the time.
            counts: whether this counts as a failure of the node; False if the message was lost.
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
        """Permit versions of the model up to ``until``, and take the steps that waited for that."""
        self._follow(self._federation.go_on(until, now_s), now_s)
        return self._output()

    def look(self, now_s: float) -> Output:
        """Do what is due by time alone: end a turn, or give up silent nodes."""
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
            why += f"; it has failed {times} times in a row, and is excluded"
        self._lose(node, f"failed: {why}", now_s)

    def _lose(self, node: int, why: str, now_s: float) -> None:
        """Continue without a node; its reply will not count."""
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
            self._say(f"node {node} is an outlier, and is barred", warns=True)
            self._forget(node)
        for node in outcome.readmitted:
            self._say(f"node {node} may join again")
        for node in outcome.receivers:
            if node in self._there:
                self._send[node] = None
            else:
                self._lose(node, "is gone", now_s)

    def _wait(self, why: str) -> None:
        """Log the reason to wait, once."""
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
