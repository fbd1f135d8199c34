"""A model that sites average between the local steps of a user's loop.

Each average is one exchange. It carries the model or its change, the floating-point buffers, and a
trailer (:mod:`anabranch.train.trailer`). Where the change travels in blocks of few bits, buffers
and trailer have an exchange of their own, in float32. The trailer says whether the site still
trains, so that sites with unequal numbers of steps end together. A broadcast at the same time
copies the other buffers.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anabranch._typed_toml import checked
from anabranch.exchange.reduction import weight_of
from anabranch.exchange.terms import Wire
from anabranch.group._buffers import Buffers
from anabranch.group.tensors import Tensors
from anabranch.period import AnyPeriod, Every, Timed
from anabranch.site.round import ExchangeError, RunEnded
from anabranch.train.averaging import FORMATS, Average, Floats, Outer
from anabranch.train.local_steps import LocalSteps, check
from anabranch.train.trailer import Agreement, read_trailer, write_trailer
from anabranch.train.waiting import Waiting

if TYPE_CHECKING:
    from anabranch.group.blocking_group import Handle

_TIME, _SECONDS = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h)"), {"s": 1.0, "min": 60.0, "h": 3600.0}
_IDLE = 1e-6  # weight of a site that has made no steps, where steps weigh
_EXACT, _ROUNDED = 1e-4, 0.04  # the largest error of a mean of equal bits: float32, halves


@dataclass(frozen=True, slots=True)
class Calls:
    """The group calls that averages use.

    Args:
        mean: begins a mean. Takes a part of the model, the arrays beside it, this site's weight,
            and whether to call the members that are behind.
        compressed: begins a mean in blocks of few bits. Takes an array, another that gets what is
            lost, this site's weight, and whether to call the members that are behind.
        copy: begins a broadcast of the first member's tensors.
        gather: returns every member's bytes, by name.
        is_called: returns whether another member has begun the next mean, and called this one.
        is_rounded: whether means are rounded to halves on the way.
        now_s: returns the loop's time, which measures steps.
        is_over: returns whether the run is over, as far as completed averages show.
        ask_ahead: requests the plan of the next mean before that begins; takes its elements, the
            compressed ones alone where a part of the model is compressed. None
            where no site can tell which step is the last before that mean.
        settle: waits until every member holds the results of all averages before.
        advise: tells the program's author a sentence.
    """

    mean: Callable[[list[Any], list[Any], float, bool], Handle]
    compressed: Callable[[Floats, Floats, float, bool], Handle]
    copy: Callable[[list[Any]], Handle]
    gather: Callable[[bytes], dict[str, bytes]]
    is_called: Callable[[], bool]
    is_rounded: bool
    now_s: Callable[[], float]
    is_over: Callable[[], bool]
    ask_ahead: Callable[[int], object] | None = None
    settle: Callable[[], object] = lambda: None
    advise: Callable[[str], object] = lambda advice: None


@dataclass(frozen=True, slots=True)
class _Flying:
    """An average that is on its way.

    Args:
        said: this site's trailer; once the exchange has ended, the mean of all sites' trailers.
        fragment: which fragment of the model it averages; that of fragment 0 has the buffers too.
        base: the checksum of this site's model after the last average.
        handle: the exchange; None where the average was loaded with a state.
        beside: the exchange of buffers and trailer, if that is another.
        copying: the broadcast of copied buffers; None where there are none.
        is_late: whether it began when this site knew already that the run is over.
    """

    said: Floats
    fragment: int
    base: int = 0
    handle: Handle | None = None
    beside: Handle | None = None
    copying: Handle | None = None
    is_late: bool = False


class ModelAverage:
    """A model that all members average; :meth:`Group.average` makes one.

    One thread calls it. If sites or links are lost during an average, ``latest.contributors`` names
    the sites that it covers. The remaining members get the same result.

    Attributes:
        weight: of this site's model in averages that begin from now on, > 0. Or ``"steps"``: the
            local steps since its last average.
        latest: the exchange of the latest average that the model has; None before the first.
    """

    def __init__(
        self,
        calls: Calls,
        site: str,
        parameters: Iterable[Any],
        buffers: Callable[[], Iterable[Any]],
        period: AnyPeriod,
        average: Average,
        weight: float | Literal["steps"],
    ) -> None:
        check(period, average)
        self.weight: float | Literal["steps"] = "steps" if weight == "steps" else weight_of(weight)
        self.latest: Handle | None = None
        self._calls = calls
        self._site = site
        self._period = period
        self._average = average
        self._tensors = Tensors(parameters)
        if self._tensors.wire != Wire.FLOAT32:
            raise ValueError(
                f"parameters are {self._tensors.wire.name.lower()}, and small steps would be lost "
                "in their means; keep them in float32, and give wire= for fewer bytes"
            )
        if self._tensors.elements < average.fragments:
            raise ValueError(
                f"fragments: {average.fragments} of {self._tensors.elements} elements; give fewer"
            )
        self._buffers = Buffers(buffers)
        self._how = period, average, self._buffers.layout
        self._local = LocalSteps(self._tensors.parts, period, average)
        self._flying: deque[_Flying] = deque()
        self._trains = True
        self._finished = 0  # successive averages in which no site had further steps to make
        self._contributed_at = [0] * average.fragments  # steps at each fragment's last average
        self._exchanged = [0] * average.fragments  # elements of that average, and beside it
        self._stepped_s = self._calls.now_s()
        self._waiting: Waiting | None = None
        if isinstance(period, Every):
            self._waiting = Waiting(period.steps, average.fragments)

    @property
    def steps(self) -> int:
        """How many local steps this site has made."""
        return self._local.steps

    @property
    def begun(self) -> int:
        """How many averages have begun, the same number at every member."""
        return self._local.begun

    def step(self) -> bool:
        """Count a local step, and average if that is due; call it after each ``optimizer.step()``.

        Returns:
            Whether the model now has a new average.

        Raises:
            ValueError: a parameter has other memory than before; names it. Or the model has other
                buffers than before. Or other members average by other rules; or, with an outer
                optimiser, members' models differed before, and it names the members. In these two
                cases the model's values are then undefined.
            ExchangeError: members' models differ in size, or another member makes another call;
                names two members. Or a member's model has NaN or an infinity, and
                :attr:`Group.on_nan` is ``"raise"``; names it. The model is as before that average.
            RunAborted: the group has ended; names the cause.
        """
        began_s = self._calls.now_s()
        compute_s = began_s - self._stepped_s
        self._local.stepped(compute_s)
        self._trains = True
        was_over = self._calls.is_over()
        try:
            is_used = self._take_ripe()
            is_due = self._is_due()
            if is_due and self._local.is_full:
                is_used = self._take()
            if is_used and self._calls.is_over() and not was_over:
                return True  # that average was the last of the run
            # Sites that call one another are at different steps. Each returns once it has used one
            # average, before it begins another, since its program may make other calls then.
            if is_due and not (is_used and self._period.calls):
                self._begin(self._period.calls)
                is_used |= self._take_ripe()
            self._ask_ahead()
            return is_used
        finally:
            self._stepped_s = self._calls.now_s()
            self._note_wait(compute_s, self._stepped_s - began_s)

    def _note_wait(self, compute_s: float, wait_s: float) -> None:
        """Say once, after a few averages, if they take much of the time."""
        if self._waiting is None:
            return
        self._waiting.stepped(compute_s, wait_s)
        if self._waiting.is_known and (advice := self._waiting.advice):
            self._calls.advise(advice)

    def finish(self) -> None:
        """Average until all members have finished; then all have the same model.

        Every member calls it after its steps. Members may have made unequal numbers of steps: a
        finished member contributes its current model, until the last one finishes. This makes at
        least one average of each fragment. If no site has made steps since the last average, the
        outer optimiser makes none either. All members may make further steps afterwards. If the run
        is over, this makes no average, and leaves the model as the last averages made it.

        Raises:
            ValueError: as for :meth:`step`. Or, with an outer optimiser, sites' models have changed
                in different ways, and no site has called :meth:`step`.
            ExchangeError, RunAborted: as for :meth:`step`.
        """
        while self._flying:
            self._take()
        self._trains, self._finished = False, 0
        while self._finished < self._average.fragments and not self._calls.is_over():
            # Call no member that still makes steps: it would average after each of them.
            self._begin(calls=False)
            self._take()
        if self._calls.is_over():
            self._tensors.refresh()
            self._local.finish()
            self._tensors.finish()
            self._buffers.finish()
        self._stepped_s = self._calls.now_s()

    def _ask_ahead(self) -> None:
        """Request the plan of the next average, if the next step begins it.

        The answer comes while the program computes that step.
        """
        if self._calls.ask_ahead is None or self._calls.is_over():
            return
        elements = self._exchanged[self._local.next_fragment]
        if elements and self._local.is_due_next:
            self._calls.ask_ahead(elements)

    def _is_due(self) -> bool:
        if self._period.asks_moved:
            self._tensors.refresh()
        return self._local.is_due(self._period.calls and self._calls.is_called())

    def _begin(self, calls: bool) -> None:
        self._tensors.refresh()
        fragment, steps = self._local.next_fragment, self._local.steps
        fresh = steps - self._contributed_at[fragment]
        weight = (fresh or _IDLE) if self.weight == "steps" else weight_of(self.weight)
        has_buffers = fragment == 0
        # Only with fragment 0: when another fragment begins, some members may not have taken the
        # latest average of the buffers yet.
        base = self._local.base_checksum ^ (self._buffers.base_checksum() if has_buffers else 0)
        said = write_trailer(self._trains, fresh, self._how, base)
        beside = self._buffers.contribute() if has_buffers else []
        words = self._buffers.words() if has_buffers and self._buffers.has_copied else []
        part, beside = self._local.begin(weight), [*beside, said]
        lost, apart = self._local.lost, None
        if lost is None:
            handle = self._calls.mean(part, beside, weight, calls)
            part = [*part, *beside]
        else:
            handle = self._calls.compressed(part[0], lost, weight, calls)
            apart = self._calls.mean([], beside, weight, False)
        self._exchanged[fragment] = sum(math.prod(each.shape) for each in part)
        copying = self._calls.copy(words) if words else None
        self._contributed_at[fragment] = steps
        is_late = self._calls.is_over()
        self._flying.append(_Flying(said, fragment, base, handle, apart, copying, is_late))

    def _take_ripe(self) -> bool:
        is_used = False
        while self._local.is_ripe:
            is_used |= self._take()
        return is_used

    def _take(self) -> bool:
        """Wait for the oldest average, and use it; return whether it was used."""
        flying, seconds = self._flying[0], 0.0
        if flying.handle is not None:
            try:
                seconds = flying.handle.result.seconds
                if flying.beside is not None:
                    seconds = max(seconds, flying.beside.result.seconds)
            except ExchangeError as error:
                if flying.beside is not None and flying.fragment == 0:
                    self._buffers.drop()  # the exchange may go on, and overwrite what it was given
                self._flying.popleft()
                self._local.drop()
                if isinstance(error, RunEnded) and not flying.is_late:
                    return False  # it began before the last average told that the run is over
                raise
        has_copied = self._has_copied(flying)
        self._flying.popleft()
        heard = self._heard(flying)
        self._finished = 0 if heard.trains or not has_copied else self._finished + 1
        if flying.fragment == 0:
            self._buffers.take()
            if has_copied:
                self._buffers.take_words()
        if self._average.steps_by is not None and not heard.is_fresh:
            self._tensors.refresh()
            has_strayed = self._local.has_strayed
            self._local.take_mean_alone()  # a step of the outer optimiser would add its momentum
            self._tensors.finish()
            if has_strayed:
                raise ValueError(
                    "sites' models have changed in different ways, and no site has counted a step: "
                    "call step() of the average after each; a DiLoCo block counts the steps of "
                    "the optimizer that it was given"
                )
            return False
        if self._average.steps_by is not None or self._average.delay:
            self._tensors.refresh()  # keeps the steps made meanwhile
        self._local.take(seconds)
        self._tensors.finish()
        self.latest = flying.handle
        return True

    def _has_copied(self, flying: _Flying) -> bool:
        """Wait for the copied buffers; return False where the first member was lost."""
        try:
            if flying.copying is not None:
                flying.copying.wait()
        except ExchangeError:
            return False
        return True

    def _heard(self, flying: _Flying) -> Agreement:
        """Return what all members' trailers show, and check it.

        Raises:
            ValueError: members average by different rules, or their models differed after the last
                average.
        """
        heard = read_trailer(flying.said, _ROUNDED if self._calls.is_rounded else _EXACT)
        if not heard.average_alike:
            self._local.drop()
            raise ValueError(
                f"other members average by other rules than this one, {self._site}, with "
                f"{self._period} and {self._average}, or have other buffers; give the same to "
                "group.average() at every site"
            )
        if not heard.are_alike:
            self._local.drop()
            raise ValueError(self._account_of_bases(flying.base))
        return heard

    def _account_of_bases(self, base: int) -> str:
        """Return which sites' models differed; all members call this after the same average."""
        try:
            bases = self._calls.gather(base.to_bytes(8))
        except ExchangeError:  # some members have begun another average instead
            odd = ["of some sites"]
        else:
            first = bases[next(iter(bases))]
            odd = [f"of {site}" for site, each in bases.items() if each != first]
        return (
            f"models of sites were not alike before this average: that {', '.join(odd)} differed "
            "from that of the first member; all begin with the same parameters and buffers, so "
            "call group.broadcast(model) before group.average()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the averages, beside the model; waits until all are settled.

        It holds tensors, numbers and strings, for ``torch.save`` or :meth:`Group.admit`. They are
        no copies: the next step changes them. Call ``admit`` after a :meth:`step` that returned
        ``True``: then all members have just used the same average, and newcomers get the same state
        from each.

        Raises:
            ExchangeError, RunAborted: as for :meth:`step`.
        """
        for flying in self._flying:
            if flying.handle is not None:
                flying.handle.wait()
                if flying.beside is not None:
                    flying.beside.wait()
                self._has_copied(flying)
        self._calls.settle()
        return {
            "site": self._site,
            "begun": self._local.begun,
            "contributed_at": self._contributed_at.copy(),
            "said": [flying.said.tolist() for flying in self._flying],
            "local": _with_tensors(self._local.state_dict()),
            "buffers": self._buffers.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; call it after loading the model, and before the first step.

        With its own state, a site continues where it saved that. With another site's state, as
        ``admit`` hands it on, this site begins with the model after the last average. It undoes the
        other site's later steps. A plain mean keeps no copy of that model, and undoes none.

        Raises:
            ValueError: this is no such state, or it is of another model, or of other arguments. Or
                this site has made steps or averages already.
        """
        keys = "site", "begun", "contributed_at", "said", "local", "buffers"
        missing = [key for key in keys if key not in state]
        if missing:
            raise ValueError(f"the state of an average has no {missing[0]!r}; see state_dict()")
        if self._local.steps or self._local.begun:
            raise ValueError(
                f"{self._local.steps} steps and {self._local.begun} averages have been made here; "
                "load the state before the first"
            )
        self._local.load_state_dict(_with_arrays(state["local"]))
        self._local.resume_after(state["begun"])
        self._contributed_at = list(state["contributed_at"])
        self._buffers.load_state_dict(state["buffers"])
        first = self.begun - len(state["said"])
        self._flying = deque(
            _Flying(np.array(said, np.float32), (first + place) % self._average.fragments)
            for place, said in enumerate(state["said"])
        )
        if state["site"] != self._site:
            self._tensors.refresh()
            self._local.adopt()
            self._tensors.finish()
            self._buffers.adopt()
        self._stepped_s = self._calls.now_s()


def trained_of(model: Any) -> list[Any]:
    """Return a model's parameters that need gradients.

    Raises:
        ValueError: no parameter does.
    """
    found = [each for each in model.parameters() if each.requires_grad]
    if not found:
        raise ValueError("no parameter of the model needs a gradient, so there is no average")
    return found


def period_of(every: Any) -> AnyPeriod:
    """Return the period of a user's ``every``.

    Raises:
        ValueError: ``every`` is no period of averages.
    """
    if isinstance(every, Integral) and not isinstance(every, bool) and int(every) >= 1:
        return Every(steps=int(every))
    if isinstance(every, str) and (told := _TIME.fullmatch(every)) and float(told[1]):
        return Timed(seconds=float(told[1]) * _SECONDS[told[2]])
    if isinstance(every, AnyPeriod) and every.averages:
        try:
            return checked(every)
        except ValueError as error:
            raise ValueError(f"every: {error}") from None
    raise ValueError(
        f"every is {every!r}, must be a number of local steps, 1 at least, a time such as '30s', "
        "or a period such as anabranch.Moved(by=0.05)"
    )


def average_of(outer: Any, delay: Any, fragments: Any, wire: Any) -> Average:
    """Return the rule of averages of a user's arguments.

    Raises:
        ValueError: an argument is invalid; names it.
    """
    if outer is not None and not isinstance(outer, Outer):
        raise ValueError(
            f"outer is a {type(outer).__name__}, must be anabranch.Outer(learning_rate=..., "
            "momentum=...)"
        )
    whole = {"delay": delay, "fragments": fragments}
    for name, number in whole.items():
        if not isinstance(number, Integral):
            raise ValueError(f"{name} is {number!r}, must be an integer")
    travels: Any = "float32" if wire is None else wire
    if travels not in FORMATS:
        raise ValueError(f"wire is {wire!r}, must be one of {', '.join(FORMATS)}")
    return checked(
        Average(outer=outer, wire=travels, **{name: int(each) for name, each in whole.items()})
    )


def _with_tensors(state: Any) -> Any:
    """Return a state with tensors for its arrays, of the same memory, for ``torch.load``."""
    import torch

    if isinstance(state, dict):
        return {key: _with_tensors(each) for key, each in state.items()}
    if isinstance(state, list):
        return [_with_tensors(each) for each in state]
    return torch.from_numpy(state) if isinstance(state, np.ndarray) else state


def _with_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _with_arrays(each) for key, each in state.items()}
    if isinstance(state, list):
        return [_with_arrays(each) for each in state]
    return state.cpu().numpy() if hasattr(state, "detach") else state
