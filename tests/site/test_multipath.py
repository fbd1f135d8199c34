"""Which path a chunk takes: the primary one until it is busy, then auxiliary ones by speed."""

from __future__ import annotations

import pytest

from anabranch.exchange.actions import Send
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.messages import PartialSum
from anabranch.site._lane import Path
from anabranch.site._multipath import Fork, choose

PRIMARY, FAST, SLOW = (0, 9), (0, 1, 9), (0, 2, 3, 9)
TERMS = Terms(Op.MEAN, Wire.FLOAT32, 100).code


class Paths:
    """A fork, and what it put on which path."""

    def __init__(self, busy_bound: int = 2, queue_length: int = 1, waits: bool = True) -> None:
        self.put: list[Send] = []
        self.fork = Fork(busy_bound, queue_length, waits=waits)
        self.use(FAST, SLOW)

    def use(self, *auxiliary: Path) -> None:
        self.put += self.fork.use(auxiliary)

    def add(self, *chunks: int) -> None:
        for chunk in chunks:
            message = PartialSum(1, 1, chunk, PRIMARY, TERMS)
            self.put += self.fork.add(Send(message, memoryview(b"")))

    def taken(self) -> list[tuple[int, Path]]:
        return [(send.message.chunk, send.message.path) for send in self.put]

    def send(self, chunk: int) -> None:
        """Let a chunk leave, by the message that its path has been written into."""
        [send] = [send for send in self.put if send.message.chunk == chunk]
        self.put += self.fork.sent(send.message)

    def credit(self, path: Path) -> None:
        self.put += self.fork.credited(path)


@pytest.mark.parametrize(
    ("primary", "auxiliary", "choice"),
    [
        (0, [0, 0], -1),
        (1, [0, 0], -1),
        (2, [0, 0], 0),  # busy: the fastest other
        (2, [2, 1], 1),
        (2, [2, 2], None),  # all are full
        (5, [], None),
    ],
)
def test_the_two_knobs(primary: int, auxiliary: list[int], choice: int | None) -> None:
    assert choose(primary, auxiliary, busy_bound=2, queue_length=2, waits=True) == choice


@pytest.mark.parametrize(
    ("primary", "auxiliary", "choice"),
    [(1, [0, 0], -1), (2, [2, 1], 1), (2, [2, 2], -1), (5, [], -1)],
)
def test_without_waiting_the_primary_path_takes_what_is_beyond_the_bounds(
    primary: int, auxiliary: list[int], choice: int
) -> None:
    assert choose(primary, auxiliary, busy_bound=2, queue_length=2, waits=False) == choice


def test_without_waiting_a_chunk_keeps_the_path_that_it_took_when_it_was_ready() -> None:
    paths = Paths(waits=False)
    paths.add(0, 1, 2, 3, 4, 5)
    assert paths.taken() == [
        *((0, PRIMARY), (1, PRIMARY), (2, FAST), (3, SLOW), (4, PRIMARY), (5, PRIMARY))
    ]
    paths.credit(FAST)
    assert len(paths.put) == 6  # nothing waits that could take it
    paths.add(6)
    assert paths.taken()[6:] == [(6, FAST)]
    for chunk in (0, 1, 4, 5):
        paths.send(chunk)
    paths.add(7)
    assert paths.taken()[7:] == [(7, PRIMARY)]


def test_chunks_are_bound_late_and_the_lowest_first() -> None:
    paths = Paths()
    paths.add(5, 6, 7, 8, 4, 3)
    # Two keep the primary path busy, one fills each auxiliary path, the rest wait.
    assert paths.taken() == [(5, PRIMARY), (6, PRIMARY), (7, FAST), (8, SLOW)]
    paths.send(5)
    assert paths.taken()[4:] == [(3, PRIMARY)]
    paths.credit(SLOW)
    assert paths.taken()[5:] == [(4, SLOW)]


def test_what_takes_an_auxiliary_path_says_so() -> None:
    paths = Paths(busy_bound=1)
    paths.add(0, 1)
    assert [send.message.is_aux for send in paths.put] == [False, True]


def test_a_relayed_path_is_free_when_its_first_relay_says_so_and_not_when_it_was_sent() -> None:
    paths = Paths(busy_bound=1)
    paths.add(0, 1, 2, 3)
    assert paths.taken() == [(0, PRIMARY), (1, FAST), (2, SLOW)]
    paths.send(1)
    assert len(paths.put) == 3
    paths.credit(FAST)
    assert paths.taken()[3:] == [(3, FAST)]


def test_an_auxiliary_path_without_relays_is_free_when_it_was_sent() -> None:
    paths = Paths(busy_bound=1)
    paths.use((0, 9))  # where the primary path is a relayed one
    paths.add(0, 1, 2)
    paths.send(1)
    assert [chunk for chunk, _ in paths.taken()] == [0, 1, 2]


def test_paths_may_change_while_chunks_are_on_their_way() -> None:
    paths = Paths(busy_bound=1)
    paths.add(0, 1, 2, 3, 4)
    paths.use(SLOW)
    paths.credit(FAST)  # of an old path: nothing else may take it
    assert paths.taken() == [(0, PRIMARY), (1, FAST), (2, SLOW)]
    paths.credit(SLOW)
    assert paths.taken()[3:] == [(3, SLOW)]
    paths.use()
    paths.send(0)
    assert paths.taken()[4:] == [(4, PRIMARY)]


def test_a_credit_for_nothing_is_none() -> None:
    paths = Paths(busy_bound=1, queue_length=1)
    paths.credit(FAST)
    paths.add(0, 1, 2, 3)
    assert len(paths.put) == 3
