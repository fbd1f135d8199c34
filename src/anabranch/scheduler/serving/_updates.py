"""The life of each update, from the permission to compute it until the pace is told of it. Pure.

An update is named by its worker and its number. A worker's updates are numbered from 1, and no
number is used twice, whatever is lost. Two numbers say how far a worker is::

    1 .. settled               the pace was told of these, or they are lost
    settled + 1 .. made        under way: the worker has permission for these
    made + 1 .. each           not begun

An update that is under way waits for two things, in any order::

    permission ─▶ under way ─┬─ every server has its part ──┬─▶ complete ─▶ the pace is told
                             └─ the worker asks to proceed ─┘
                   │
                   └─ given up ─ the worker asks to proceed ──▶ complete, discarded by servers

The pace is told of the next update of each worker of a group at once, so a group's first complete
update may wait for another worker's.

An update is *given up* if its worker is lost or barred, if it was computed on a model that is too
old, or if the way to the servers is broken. Servers discard it by name, so no part of it is awaited
any more. A server may still report that its part has come; the report has no effect.

What must never happen: a server's part counts twice, a worker asks twice after one update, or the
pace is told of an update that a loss may yet void.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.pace import Update

_NOTHING = -1  # the model version of a worker without a model: its next update pulls one


@dataclass(slots=True)
class _UnderWay:
    """An update that a worker has permission for, and that is not settled."""

    based_on: int  # the version of the model that it is computed on
    began_s: float  # when the worker could begin it
    asked: bool = False
    samples: int = 0
    compute_s: float = 0.0
    loss: float | None = None
    parts: dict[int, float | None] = field(default_factory=dict)  # squared norms, by server


@dataclass(frozen=True, slots=True)
class Iteration:
    """The durations of an iteration, which begins when a worker can begin an update.

    Args:
        samples: of its batch.
        compute_s: how long it computed; at most ``iteration_s``.
        iteration_s: how long the iteration took.
    """

    samples: int
    compute_s: float
    iteration_s: float


@dataclass(frozen=True, slots=True)
class Pushed:
    """A group's updates of one number, all complete.

    Args:
        workers: that computed them.
        based_on: the oldest version of the model that one was computed on.
        mean_loss: of the workers' batches; None if one tells none.
        squared_norm: of their mean, if they are added up; None if a server does not tell.
    """

    workers: tuple[int, ...]
    based_on: int
    mean_loss: float | None
    squared_norm: float | None


@dataclass(frozen=True, slots=True)
class Push:
    """The updates of a group that the pace is told of at once.

    Args:
        by_number: the updates; several if all that were under way were given up.
        compute_s: how long the slowest worker computed the first of them.
        is_given_up: whether they were given up.
    """

    by_number: dict[int, Pushed]
    compute_s: float
    is_given_up: bool


class Updates:
    """The updates of all workers.

    Args:
        workers: the sites that compute.
        servers: the sites that hold the model; each must have its part of an update.
        each: the number of updates that a worker makes.
        ahead: how many more it may compute before it gets the model with its latest one.

    Attributes:
        each: see above.
        made: by worker, the latest update that it had permission for.
        settled: by worker, the latest update that the pace was told of, or that was lost.
        servers: see above.
        complete: the updates under way that are complete: see the head of this module.
        closed: whether no further permission is granted.
    """

    def __init__(
        self, workers: Iterable[int], servers: Iterable[int], each: int, ahead: int
    ) -> None:
        self.each = each
        self.made = dict.fromkeys(workers, 0)
        self.settled = dict.fromkeys(self.made, 0)
        self.servers = frozenset(servers)
        self.closed = False
        self._ahead = ahead
        self._under_way: dict[Update, _UnderWay] = {}
        self.complete: dict[Update, None] = {}  # in the order in which they became so
        # Kept after the updates are settled: a server's late part of one is then no error.
        self._given_up: set[Update] = set()
        self._model = dict.fromkeys(self.made, 0)  # the version that each worker has, or will get

    # --- how far workers are

    @property
    def latest(self) -> int:
        """The largest number of an update that a worker had permission for."""
        return max(self.made.values(), default=0)

    def with_more_to_do(self, workers: Iterable[int]) -> list[int]:
        """Return those of the given workers that have not begun all their updates."""
        return [worker for worker in workers if self.made[worker] < self.each]

    def are_left_after(self, number: int) -> bool:
        """Return whether a worker may begin another update after this number."""
        return not self.closed and number < self.each

    @property
    def done(self) -> tuple[int, ...]:
        """The workers that had permission for all their updates."""
        return tuple(worker for worker, made in self.made.items() if made == self.each)

    def of(self, worker: int) -> tuple[Update, ...]:
        """Return the updates of a worker that are under way."""
        first = self.settled[worker] + 1
        return tuple((worker, number) for number in range(first, self.made[worker] + 1))

    def is_given_up(self, update: Update) -> bool:
        """Return whether an update was given up before it was complete."""
        return update in self._given_up

    def computing(self) -> Iterator[Update]:
        """Iterate over the updates whose workers have not asked to proceed after them."""
        return (update for update, each in self._under_way.items() if not each.asked)

    # --- events of an update

    def to_begin(self, worker: int) -> range:
        """Return the numbers of the updates that a worker may begin, after a step of the model."""
        made = self.made[worker]
        most = made if self.closed else min(self.each, self.settled[worker] + 1 + self._ahead)
        return range(made + 1, most + 1)

    def begin(self, update: Update, version: int, now_s: float) -> bool:
        """Note a worker's permission for its next update, on a version of the model.

        Returns:
            Whether the worker has to pull that version.
        """
        worker, self.made[update[0]] = update
        pulls = self._model[worker] < version
        self._model[worker] = version
        self._under_way[update] = _UnderWay(version, now_s)
        return pulls

    def ask(
        self, update: Update, samples: int, compute_s: float, now_s: float, loss: float | None
    ) -> Iteration:
        """Note that a worker asks to proceed after an update.

        Raises:
            OutOfPlaceMessage: it has asked before, or has no permission for that update.
        """
        each = self._awaited(update)
        if each.asked:
            raise OutOfPlaceMessage(
                f"site {update[0]} asks to proceed twice, after update {update[1]}"
            )
        iteration_s = now_s - each.began_s
        each.asked, each.samples, each.loss = True, samples, loss
        each.compute_s = min(compute_s, iteration_s)
        following = self._under_way.get((update[0], update[1] + 1))
        if following is not None and not following.asked:
            # The worker computes one update at a time, so the one ahead begins only now.
            following.began_s = now_s
        self._judge(update)
        return Iteration(samples, each.compute_s, iteration_s)

    def come(self, server: int, update: Update, squared_norm: float | None) -> None:
        """Note that a server has its part of an update.

        Raises:
            OutOfPlaceMessage: it has reported its part before, or the worker has no permission for
                the update.
        """
        parts = self._awaited(update).parts
        if server in parts:
            raise OutOfPlaceMessage(
                f"site {server} has update {update[1]} of site {update[0]} twice"
            )
        parts[server] = squared_norm
        self._judge(update)

    def _awaited(self, update: Update) -> _UnderWay:
        each = self._under_way.get(update)
        if each is None:
            raise OutOfPlaceMessage(f"update {update[1]} of site {update[0]}, which is not awaited")
        return each

    def void(self, workers: Collection[int]) -> None:
        """Forget the parts that servers have of some workers' updates: their sums are void."""
        for update, each in self._under_way.items():
            if update[0] in workers:
                each.parts.clear()
                self._judge(update)

    def _judge(self, update: Update) -> None:
        """Find out whether an update under way is complete."""
        each = self._under_way[update]
        is_here = each.parts.keys() == self.servers or update in self._given_up
        if each.asked and is_here:
            self.complete[update] = None
        else:
            self.complete.pop(update, None)

    def _end(self, update: Update) -> _UnderWay:
        self.complete.pop(update, None)
        return self._under_way.pop(update)

    def squared_norm(self, update: Update) -> float | None:
        """Return an update's squared norm; None if a server does not tell that of its part."""
        parts = self._under_way[update].parts
        return _sum([parts[server] for server in sorted(parts)])

    def iteration(self, update: Update, now_s: float) -> Iteration:
        """Return the durations of an update's iteration, if that ends now."""
        each = self._under_way[update]
        return Iteration(each.samples, each.compute_s, now_s - each.began_s)

    # --- updates are settled

    def push(self, workers: Sequence[int]) -> Push | None:
        """Settle the next update of each worker of a group; None while one is not complete.

        If the next update was given up, so were all under way, and they are settled with it.
        """
        first = self.settled[workers[0]] + 1
        is_given_up = (workers[0], first) in self._given_up
        last = self.made[workers[0]] if is_given_up else first
        numbers = range(first, last + 1)
        if not all((worker, k) in self.complete for worker in workers for k in numbers):
            return None
        compute_s = max(self._under_way[worker, first].compute_s for worker in workers)
        pushed = {number: self._pop(tuple(workers), number) for number in numbers}
        self.settled |= dict.fromkeys(workers, last)
        return Push(pushed, compute_s, is_given_up)

    def _pop(self, workers: tuple[int, ...], number: int) -> Pushed:
        # If the updates were added up, each has the squared norm of their mean: any one will do.
        squared_norm = self.squared_norm((workers[0], number))
        each = [self._end((worker, number)) for worker in workers]
        loss = _sum([update.loss for update in each])
        mean_loss = None if loss is None else loss / len(each)
        return Pushed(workers, min(update.based_on for update in each), mean_loss, squared_norm)

    def give_up(self, worker: int) -> tuple[Update, ...]:
        """Give up and return all updates of a worker that are under way."""
        under_way = self.of(worker)
        self._given_up.update(under_way)
        for update in under_way:
            self._judge(update)
        return under_way

    def have_asked(self, worker: int) -> bool:
        """Return whether a worker has asked to proceed after each of its updates under way."""
        return all(self._under_way[update].asked for update in self.of(worker))

    def drop(self, worker: int) -> None:
        """Settle a worker's updates under way without telling the pace."""
        for update in self.of(worker):
            self._end(update)
        self.settled[worker] = self.made[worker]

    def lose(self, worker: int) -> tuple[Update, ...]:
        """Give up, settle and return the updates under way of a lost worker."""
        under_way = self.give_up(worker)
        self.drop(worker)
        self._model[worker] = _NOTHING
        return under_way

    def resume(self, worker: int, number: int) -> None:
        """Set the number of updates that a worker has made; with its next one it pulls the model.

        None of its updates may be under way.
        """
        self.made[worker] = self.settled[worker] = number
        self._model[worker] = _NOTHING


def _sum(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of numbers; None if one is missing."""
    known = [number for number in numbers if number is not None]
    return math.fsum(known) if len(known) == len(numbers) and known else None
