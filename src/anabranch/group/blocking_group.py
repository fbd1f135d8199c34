"""The blocking interface of a group, for ordinary training loops.

Theory of operation
-------------------

Two threads of the process work for a group::

    the program's thread                    the loop's thread (group/_thread.py)
    --------------------                    ------------------------------------
    Group: checks arguments, wraps tensors
      |  Member.run(coroutine)    ------->  AsyncGroup: exchanges, gatherings, admission
      |  Member.begin(coroutine)  ------->    the same; a Handle holds the future
      v                                       sums of other sites' calls, heartbeats, probes
    Handle.wait(): result, `sites`  <-----  the future is done

The loop's thread serves the other sites while the program computes. So a site that is slow to call
still relays the others' chunks.

A ``Group`` is one channel of a :class:`anabranch.group._member.Member`: the whole group is channel
0, and each subgroup has another. A member has three states: *open*, *leaving* and *closed*.

- ``join`` makes it open. A group that exchanges starts at once. One that serves or gossips starts
  by its first ``serve`` or ``gossip``, which brings the model.
- ``close`` makes it leaving: it waits for this site's calls, then for the other sites. With an
  error it reports that to the scheduler instead, and waits for no site.
- After that it is closed, and the loop's thread ends. All later calls raise ``RunAborted``.

``sites``, ``size`` and ``rank`` change only in the program's thread, when a call is waited for: a
loss removes members, ``admit`` adds them. All members wait for the same calls in the same order, so
at one place of the program they agree on the members (``_present``). A call that began before an
admission and ended after it says nothing of the newcomers, so its members are not used.

What must never happen:

- *The program's thread writes tensors that an exchange reads.* They belong to the ``Handle`` until
  ``wait`` returns.
- *A callback waits for the loop.* Callbacks of ``ended``, of ``watch_whole`` and of a handle run in
  the loop's thread, which would wait for itself.
- *A fork uses the group.* It has no loop's thread; each call checks the process id.
- *The interpreter ends before the member has left.* :mod:`anabranch.group._exit` prevents that.
- *Members average unlike models unnoticed.* The first mean of all sites warns if none of
  ``broadcast``, ``verify``, ``average``, ``gossip`` and ``admit`` came before; ``_watch`` compares
  models now and then.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack

import msgspec

from anabranch.exchange.arithmetic import MOST_INTEGER, Buffer, check_integers
from anabranch.exchange.reduction import weight_of
from anabranch.exchange.terms import EXTREMES, Op, Terms, Wire
from anabranch.group import _alike
from anabranch.group._incomplete import Incomplete
from anabranch.group._member import NOT_IN, Member, now
from anabranch.group._packed import count_of, number_of, packed
from anabranch.group._present import Present
from anabranch.group._watch import Watch
from anabranch.group.async_group import Door, Exchanging
from anabranch.group.hand_over import NoneHasIt, Offer
from anabranch.group.place import Place
from anabranch.group.place import find as find_place
from anabranch.group.tensors import (
    WIRES,
    Tensors,
    are_of_one_type,
    buffers_of,
    find_not_finite,
    is_module,
    named,
    several,
)
from anabranch.net import addresses
from anabranch.net.errors import RunAborted
from anabranch.net.messages import (
    MOST_GATHERED_BYTES,
    MOST_NAME_CHARACTERS,
    Gathered,
    Model,
)
from anabranch.net.tls import Credentials, identity_of
from anabranch.site.round import Round, RunEnded

if TYPE_CHECKING:
    from anabranch.exchange.compressed import Compressed
    from anabranch.group._average import ModelAverage
    from anabranch.group._gossip import ModelGossip
    from anabranch.period import AnyPeriod
    from anabranch.train.averaging import Outer, WireName
    from anabranch.train.schedules import AnySchedule

_log = logging.getLogger("anabranch")
OnNan = Literal["raise", "allow"]
OnUnlike = Literal["raise", "allow"]
OPS = {"mean": Op.MEAN, "sum": Op.SUM, "max": Op.MAX, "min": Op.MIN}
_TOO_LARGE = (
    "the value has {} bytes, at most {} are gathered; exchange tensors by all_reduce or broadcast"
)
_NOT_ALIKE = (
    "%s: the first mean comes before any call that makes models alike, so sites may hold "
    "different models: call group.broadcast(model) before, or group.verify(model) to compare them"
)
_MOST_DIGESTS = 1 << 19  # bytes, of tensors that are compared one by one where models differ
_CHECKED = 1 << 18  # elements at a time, so that masks stay small
_REMEMBERED = 64  # exchanges in `stats`


@dataclass(frozen=True, slots=True)
class Stats:
    """A site's measurements of its group's traffic.

    Attributes:
        sent_bytes: payload sent so far, by the name of the neighbour that it went to first.
        measured: the latest estimate of each link to this site, by the name of its source: rate in
            bit/s, and one-way latency in seconds, None where it is not known.
        rounds: the latest exchanges, the oldest first.
        share_of_limit: the least time that the overlay's rates permit for the latest exchange of
            all sites, divided by the time that it took. None before the first, and where the
            overlay's rates are only assumed. It means nothing if the overlay's rates are wrong.
        incomplete: how many results lack contributions of members, see ``Handle.contributors``.
    """

    sent_bytes: dict[str, int]
    measured: dict[str, tuple[float, float | None]]
    rounds: tuple[Round, ...]
    share_of_limit: float | None
    incomplete: int


class Handle:
    """An exchange that began with ``async_op=True``.

    Do not touch the tensors until ``wait`` has returned. ``wait`` also writes the result into
    tensors that are not contiguous or not in the CPU's memory.
    """

    def __init__(
        self,
        future: Future[Round],
        tensors: Tensors | Compressed,
        names: Sequence[str],
        ended: Callable[[Round | None], None],
        settled: Callable[[Round], Round],
    ) -> None:
        self._future = future
        self._ended = ended
        self._settled = settled
        self._tensors = tensors
        self._names = names
        self._finishing = threading.Lock()
        self._finished = False

    @property
    def done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._future.done()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the tensors hold the result.

        Args:
            timeout_s: the longest wait; None waits until the end.

        Raises:
            TimeoutError: the exchange is not done by then; it continues.
            ExchangeError: the members disagree on what to exchange; the tensors are unchanged.
            RunAborted: the group has ended; names the cause.
        """
        try:
            done = self._future.result(timeout_s)
        except RunEnded:
            self._ended(None)
            raise
        with self._finishing:  # another thread that waits returns after this, too
            if not self._finished:
                self._finished = True
                self._ended(done)
                self._tensors.finish()

    def settled(self) -> None:
        """Return when every member holds the result.

        ``wait`` may return sooner: as soon as the result is here. A loss does not change the result
        after that. But while it is not settled, a site that dies may be the only one that had it.

        Raises:
            ExchangeError, RunAborted: as for ``wait``; or the group ends before the settlement.
        """
        self._settled(self.result)

    def on_done(self, call: Callable[[Handle], None]) -> None:
        """Call a function once ``wait`` would return or raise at once.

        Args:
            call: takes this handle. It runs in the group's thread, where it must not wait. If the
                exchange has ended already, it runs at once, in the caller's thread.
        """
        self._future.add_done_callback(lambda _: call(self))

    @property
    def contributors(self) -> tuple[tuple[int, int, tuple[str, ...]], ...] | None:
        """The sites whose contributions the result has, if sites or links were lost meanwhile.

        It waits until the call is settled.

        Returns:
            ``(start, stop, names)`` of consecutive ranges, which cover all tensors' elements, one
            tensor after the other. None where all members contributed to all elements.
        """
        found = self._settled(self.result).contributions
        if not found:
            return None
        return tuple(
            (each.start, each.stop, tuple(self._names[site] for site in each.sites))
            for each in found
        )

    @property
    def result(self) -> Round:
        """The exchange's number, plan version and duration, among others; waits for its end."""
        self.wait()
        return self._future.result()


class Group:
    """Sites that exchange with one another; :func:`join` makes one.

    It is one class since a program finds the whole interface of a group here. The group's core and
    other files implement the methods.

    All members make the same exchanges in the same order; several may be under way at once. Calls
    may come from any thread, one at a time. While the program computes, another thread serves the
    other sites' exchanges.

    The loss of a site or a link does not end the group, unless the scheduler's ``--on-loss`` is
    ``abort``. The sites that still reach one another complete the calls under way. From then on
    ``sites``, ``size`` and ``rank`` count these sites. ``Handle.contributors`` names the sites that
    contributed to a result.

    Attributes:
        site: this site's name.
        on_nan: how to treat NaN and infinities in this site's part of a mean or sum. ``"raise"``
            fails the call at every member, with this site's name, and leaves all tensors unchanged;
            a :meth:`push` fails, too. ``"allow"`` exchanges them, as for a ``GradScaler``, which
            looks for infinities itself.
        on_unlike: how to treat members' models that differ although their gradients are averaged.
            ``"raise"`` compares the models now and then, see :meth:`all_reduce`. ``"allow"`` does
            not compare, for algorithms whose models differ on purpose. Give the same at every
            member.
    """

    def __init__(
        self,
        member: Member,
        channel: int,
        members: Sequence[int],
        on_nan: OnNan = "raise",
        hints: bool = False,
        on_unlike: OnUnlike = "raise",
        admissions: int = 0,
    ) -> None:
        self._member = member
        self._channel = channel
        flush = member.site.agent.flush
        self._present = Present(member.thread, flush, members, admissions)
        self.on_nan = on_nan
        self.on_unlike = on_unlike
        self._watch = Watch() if hints else None
        self._is_hint_due = hints and not channel  # until a call has made models alike
        self._names = member.site.names
        self.site = self._names[self.index]
        self._rounds: deque[Round] = deque(maxlen=_REMEMBERED)
        self._incomplete = Incomplete(self._names)

    @property
    def sites(self) -> tuple[str, ...]:
        """The members' names, as of the latest call that has been waited for.

        All members read the same at the same place of the program. So this waits until that call is
        settled, as :meth:`settle` does. Where a model is served, all sites of the overlay: workers
        come and go between calls.
        """
        return tuple(self._names[index] for index in self._present.sites)

    def settle(self) -> None:
        """Return when every member holds the results of all calls that have been waited for.

        Call it before you save a checkpoint: a site that dies with the only copy of a result would
        otherwise leave a checkpoint that the others do not have. :meth:`admit`, :meth:`close`, and
        ``state_dict`` of an average do it themselves.

        Raises:
            RunAborted: the group has ended; names the cause.
        """
        self._member.check_open()
        self._present.settle()

    @property
    def index(self) -> int:
        """This site's place in the overlay, from 0: the same in each of its processes.

        Unlike ``rank``, it is known before :meth:`admit`, and stays the same when sites join or
        leave. Use it to seed the site's data.
        """
        return self._member.site.index

    @property
    def rank(self) -> int:
        """This site's place among the members, from 0; it changes when sites join or leave.

        Raises:
            ValueError: this site joins a running group, and is no member before ``admit``.
        """
        present = self._present.sites
        if self.index not in present:
            raise ValueError(NOT_IN)
        return present.index(self.index)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended in good order: by a stop rule, or after the last update.

        All members learn it with the same call: their last :meth:`all_reduce` or average, or a
        :meth:`pull` that returned False. A member that gossips learns it with one of its own
        :meth:`ModelGossip.step` calls, and calls ``finish`` then.
        """
        return self._member.is_over(self._channel)

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._present.sites)

    @property
    def ended(self) -> Future[None]:
        """A future that fails with the error that ends the group early.

        It is cancelled once this site leaves. Callbacks run in the group's thread, and must not
        wait there.
        """
        return self._member.ended

    def watch_whole(self) -> Future[None]:
        """Return a future that fails once a member is lost, or with the error that ends the group.

        The group's calls continue without the lost member. A program's other traffic may wait for
        it; with this future, the program can end that traffic. The future is cancelled once this
        site leaves. Callbacks run in the group's thread, and must not wait there.
        """
        members, admissions = self._present.known
        # A worker of a served model comes back without an admission.
        since = None if self._member.site.settings.workers else admissions
        return self._member.whole.watch(members, self._member.ended, since)

    def __repr__(self) -> str:
        return f"<anabranch.Group of {', '.join(self.sites)}, at {self.site}>"

    # --- exchanges

    def all_reduce(
        self,
        tensors: Any,
        *,
        op: Literal["mean", "sum", "max", "min"] = "mean",
        weight: float = 1.0,
        wire: Literal["float32", "float16", "bfloat16", "int8"] | None = None,
        async_op: bool = False,
        more: bool = False,
    ) -> Handle:
        """Replace tensors by their weighted mean, sum, largest or least elements over all members.

        Every member gets the same bits, whatever the route. If a site or a link is lost meanwhile,
        the scheduler's ``--on-loss`` decides (``on_loss`` of :class:`Service`). ``complete``, the
        default, completes the call among the remaining members: finished sums keep a lost site's
        contribution. ``retry`` reduces everything again, so that one set of members contributes to
        all elements. ``abort`` ends the group. The first result that lacks contributions is logged
        (``logging.getLogger("anabranch")``). ``Handle.contributors`` names the contributors of each
        result.

        If the tensors are gradients of a ``torch.optim`` optimizer, each site makes a checksum of
        their parameters before steps 1, 2, 4, 8 and so on, from 1,024 every 1,024 steps. The
        checksum travels with the next mean. That mean fails at every member if parameters differed
        before step 1. If they diverge later, each site's log names the sites, once.

        Args:
            tensors: one tensor or array, or several, of any shapes: float32, float16 or bfloat16,
                all of one type, the same number of elements at every member. Overwritten.
            op: ``mean`` is the sum of weight times tensor over the sum of weights; ``sum`` leaves
                out the division; ``max`` and ``min`` know no weights.
            weight: of this site's tensors, > 0.
            wire: the type in which elements travel; their own if not given. Sums are computed in
                float32, and rounded to the wire's type once a hop. ``int8`` carries integers
                exactly: float32 tensors of integers, with weight 1. For ``sum`` they are from
                -(127 // size) to 127 // size, for ``max`` and ``min`` from -127 to 127.
            async_op: return at once; the tensors must not be touched until the handle's ``wait``
                has returned.
            more: a hint that this site's next call is an all-reduce of the same op, wire and number
                of elements in this group. The next plan is then requested before this call ends,
                which saves a round trip to the scheduler. The hint binds nothing, and changes no
                result. It is ignored from the first mean of gradients until a mean carries the
                first checksum, or until 1,024 means.

        Raises:
            ValueError: the tensors, the weight or a name are invalid; says which.
            TypeError: the weight is no number.
            ExchangeError: members disagree on size, type or op, or another member gathers in place
                of this call; names two members. Or a member has left. Or members' models differ
                before the first step, see :attr:`on_unlike`. The tensors are unchanged.
            RunEnded: (an ExchangeError) a stop rule has ended the run. No member makes this call,
                and all hold the result of the one before.
            RunAborted: the group has ended; names the cause. The tensors'
                values are then undefined, and may change until the group is closed.
        """
        if not isinstance(op, str) or op not in OPS:
            raise ValueError(f"op is {op!r}, must be one of {', '.join(OPS)}")
        if wire == "int8":
            return self._exchange_integers(tensors, OPS[op], weight, async_op, more)
        return self._exchange(tensors, OPS[op], weight, wire, async_op, more)

    def _exchange_integers(
        self, tensors: Any, op: Op, weight: float, async_op: bool, more: bool
    ) -> Handle:
        if op == Op.MEAN or weight != 1.0:
            raise ValueError(
                "wire 'int8' carries integers: op must be sum, max or min, and weight 1; divide "
                "the sum afterwards"
            )
        buffer = Tensors(several(tensors), op)
        most = MOST_INTEGER // self.size if op == Op.SUM else MOST_INTEGER
        for part in range(0, buffer.elements, _CHECKED):
            values = buffer.read(part, min(part + _CHECKED, buffer.elements))
            check_integers(values, most, first=part)
        terms = Terms(op, Wire.INT8, buffer.elements, tensors=self._cut(buffer))
        handle = self._begin(buffer, terms, 1.0, more=more)
        if not async_op:
            handle.wait()
        return handle

    def broadcast(self, tensors: Any, *, root: int | str = 0, async_op: bool = False) -> Handle:
        """Overwrite tensors by those of one member, bit for bit.

        Args:
            tensors: tensors or arrays of any types and shapes, the same at every member; or a
                model: then its parameters, and the buffers in its ``state_dict``.
            root: the member with the values, by rank or by name.
            async_op: as for ``all_reduce``.

        Raises:
            ValueError: as for ``all_reduce``. Or the root's tensors are of other types; raised when
                the result is written.
            ExchangeError, RunAborted: as for ``all_reduce``.
        """
        if isinstance(root, str):
            if root not in self.sites:
                raise ValueError(f"root {root!r} is no member; members are {list(self.sites)}")
            root = self.sites.index(root)
        if not isinstance(root, Integral) or not 0 <= root < self.size:
            raise ValueError(f"root {root!r} is no rank; ranks are 0 to {self.size - 1}")

        self._is_hint_due = False
        given = [*named(tensors).values()]
        if are_of_one_type(given):
            buffer = Tensors(given, Op.COPY)
        else:
            from anabranch.group.words import Moved  # which loads PyTorch

            buffer = Moved(given)
        terms = Terms(Op.COPY, buffer.wire, buffer.elements, self._present.latest[int(root)])
        handle = self._begin(buffer, terms, 1.0)
        if not async_op:
            handle.wait()
        return handle

    def _exchange(
        self,
        tensors: Any,
        op: Op,
        weight: float,
        wire: str | None,
        async_op: bool,
        more: bool,
    ) -> Handle:
        if wire is not None and wire not in WIRES:
            raise ValueError(f"wire is {wire!r}, must be one of {', '.join(WIRES)}")
        weight = weight_of(weight)
        buffer = Tensors(several(tensors), op)
        if self._is_hint_due and op == Op.MEAN:
            self._is_hint_due = False
            _log.warning(_NOT_ALIKE, self.site)
        # An extreme may be infinite, so only means and sums are checked.
        unfit = "" if op in EXTREMES else self._unfit(buffer, len(buffer.parts))
        travels = buffer.wire if wire is None else WIRES[wire]
        terms = Terms(op, travels, buffer.elements, tensors=self._cut(buffer))
        model = None
        if self._watch is not None and self.on_unlike == "raise" and op not in EXTREMES:
            model = self._watch.take()
            self._watch.averaged(buffer.given)
            more = more and not self._watch.may_begin_unlike
        handle = self._begin(buffer, terms, weight, unfit=unfit, model=model, more=more)
        if not async_op:
            handle.wait()
        return handle

    def _cut(self, buffer: Tensors) -> tuple[int, ...]:
        """Return the elements of each tensor, if chunks keep to them; else nothing."""
        if not self._member.site.settings.cuts_tensors:
            return ()
        return tuple(len(part) for part in buffer.parts if len(part))

    def _unfit(self, buffer: Tensors, parts: int) -> str:
        """Return why a buffer's first ``parts`` parts must not be summed; empty if they may be."""
        found = None
        if self.on_nan == "raise":
            found = find_not_finite(buffer.parts[:parts], buffer.wire)
        if found is None:
            return ""
        index, count = found
        return (
            f"{count} NaN or infinite elements in tensor {index}, so no member's tensors were "
            "changed; set group.on_nan = 'allow' to exchange them all the same"
        )

    def _begin(
        self,
        buffer: Tensors | Compressed,
        terms: Terms,
        weight: float,
        calls: bool = False,
        unfit: str = "",
        model: Model | None = None,
        more: bool = False,
    ) -> Handle:
        self._member.for_exchanges()
        exchange = self._exchanged(
            buffer,
            terms,
            weight,
            calls=calls,
            unfit=unfit,
            model=model,
            more=more,
            returns_early=True,
        )
        future = self._member.begin(exchange)
        ended = partial(self._has_ended, self._present.admissions)
        return Handle(future, buffer, self._names, ended, self._present.settled)

    async def _exchanged(
        self, buffer: Buffer, terms: Terms, weight: float, **more: Unpack[Exchanging]
    ) -> Round:
        """Exchange in the loop, and record the round."""
        members = self._present.latest
        more["channel"] = self._channel
        done = await self._member.site.exchange(buffer, terms, weight, **more)
        self._rounds.append(done)
        if said := self._incomplete.note(done, members):
            _log.warning("%s: %s", self.site, said)
        return done

    def _has_ended(self, admissions: int, done: Round | None) -> None:
        """Record the end of a call; ``done`` is None if the run was over before the call."""
        if done is None or done.is_last:
            self._member.over.add(self._channel)
        if done is not None:
            self._present.ended(admissions, done)

    def all_gather(self, value: Any) -> list[Any]:
        """Return every member's value, by rank.

        Args:
            value: a number (of NumPy too), a string, bytes, or lists and dictionaries of such
                (msgpack's types), nested at most 100 deep; at most 1 MiB.

        Raises:
            TypeError: the value is of another type.
            ValueError: the value is too large or nested too deeply, or has an integer of more than
                64 bits, or a string that is no Unicode text (a lone surrogate).
            ExchangeError: another member exchanges in place of this call, or has left; names it.
            RunAborted: the group has ended; names the cause.
        """
        data = packed(value)
        if len(data) > MOST_GATHERED_BYTES:
            raise ValueError(_TOO_LARGE.format(len(data), MOST_GATHERED_BYTES))
        admissions = self._present.admissions
        gathered = self._member.run(self._gather(data))
        self._present.are_left(admissions, gathered.members)
        return [msgspec.msgpack.decode(each) for each in gathered.values]

    def begin_gather(self, data: bytes, what: str = "") -> Future[dict[str, bytes]]:
        """Begin to gather every member's bytes; ``all_gather`` waits for them.

        Args:
            data: this site's bytes, at most 1 MiB.
            what: the purpose in words, for the error where a member makes another call; characters
                beyond 200 are ignored.

        Returns:
            A future of the members' bytes by name, which fails as ``all_gather`` does. Its
            callbacks run in the group's thread. It does not update ``sites``; the next call that is
            waited for does.

        Raises:
            ValueError: the data have more than 1 MiB.
        """
        if len(data) > MOST_GATHERED_BYTES:
            raise ValueError(_TOO_LARGE.format(len(data), MOST_GATHERED_BYTES))
        gathering = self._gather(data, what)

        async def gather() -> dict[str, bytes]:
            gathered = await gathering
            names = [self._names[site] for site in gathered.members]
            return dict(zip(names, gathered.values, strict=True))

        try:
            return self._member.begin(gather())
        except RunAborted:
            gathering.close()
            raise

    def _gather(self, data: bytes, what: str = "") -> Coroutine[Any, Any, Gathered]:
        agent = self._member.for_exchanges().agent
        return agent.gather(data, self._channel, what[:MOST_NAME_CHARACTERS])

    def verify(self, tensors: Any) -> None:
        """Compare the members' models, bit for bit; every member calls it at the same place.

        It reads the model once and gathers small values, so a loop may call it now and then::

            if step % 100 == 0:
                group.verify(model)

        Args:
            tensors: a model: then its parameters, and the buffers in its ``state_dict``; or tensors
                or arrays.

        Raises:
            ValueError: members' models differ; names the members, and the first tensor that differs
                at each.
            ExchangeError, RunAborted: as for :meth:`all_gather`.
        """
        self._is_hint_due = False
        held = named(tensors)
        mine = _alike.digests_of(held)
        whole = self.all_gather(hashlib.blake2b(mine, digest_size=16).digest())
        if all(each == whole[0] for each in whole):
            return
        digests = dict(zip(self.sites, self.all_gather(mine[:_MOST_DIGESTS]), strict=True))
        raise ValueError(
            f"members' models differ: {_alike.account(held, digests)}; make them alike by "
            "group.broadcast(model)"
        )

    def barrier(self) -> None:
        """Return when every member has called it.

        Raises:
            ExchangeError: another member exchanges in place of this call, or has left; names it.
            RunAborted: the group has ended; names the cause.
        """
        self.all_gather(None)

    def subgroup(self, names: Iterable[str], *, name: str = "") -> Group:
        """Return the group of some members; each of them calls this with the same names.

        The subgroup's trees span its members alone; other sites may relay for it. Two sites must
        request the subgroups that they share in the same order. Otherwise, calls of these subgroups
        raise an ExchangeError that names both.

        Args:
            names: the members' names.
            name: distinguishes several subgroups of the same members. Each orders its calls
                separately, as for calls from different threads. At most 200 characters.

        Raises:
            ValueError: ``names`` has a name that is no member's, or lacks this site's; or ``name``
                is too long.
        """
        if len(name) > MOST_NAME_CHARACTERS:
            raise ValueError(
                f"name has {len(name)} characters, at most {MOST_NAME_CHARACTERS} are allowed"
            )
        wanted = [*names]
        for each in wanted:
            if each not in self.sites:
                raise ValueError(f"{each!r} is no member; members are {list(self.sites)}")
        if self.site not in wanted:
            raise ValueError(f"this site, {self.site!r}, is not among {wanted}")
        members = tuple(sorted({self._names.index(each) for each in wanted}))
        agent = self._member.for_exchanges().agent
        channel = self._member.run(agent.subgroup(members, name))
        hints = self._watch is not None
        how = self.on_nan, hints, self.on_unlike
        return Group(self._member, channel, members, *how, self._present.admissions)

    def average(
        self,
        parameters: Any,
        *,
        every: int | str | AnyPeriod,
        buffers: Any = None,
        outer: Outer | None = None,
        delay: int = 0,
        fragments: int = 1,
        weight: float | Literal["steps"] = 1.0,
        wire: WireName | None = None,
    ) -> ModelAverage:
        """Average models periodically, between the sites' local steps.

        Every member calls it with the same arguments, apart from the weight. Then it calls
        :meth:`ModelAverage.step` after each step of its optimiser::

            group.broadcast(model)  # sites begin with the same parameters and buffers
            average = group.average(model, every=100, outer=anabranch.Outer())
            for batch in loader:
                compute(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                average.step()
            average.finish()

        Without an outer optimiser, sites average their models. With one, sites average the changes
        of their models since the last average, and the outer optimiser makes a step with that mean
        (DiLoCo). Memory beside the model, in copies of it:

        - a plain mean: none;
        - an outer optimiser: two, and one more for its momentum;
        - a delay: two, or one more with an outer optimiser;
        - fragments, or :class:`anabranch.Moved`: one, or none more with an outer optimiser;
        - a compressed change: four, or two more with an outer optimiser.

        Args:
            parameters: a model: then its parameters that need gradients, and the buffers in its
                ``state_dict``, are averaged. Or parameters as for ``all_reduce``, all float32. They
                are changed in place, and their memory must stay the same. Parameters that are not
                contiguous or not on the CPU are copied for each average and, with
                :class:`anabranch.Moved`, after each step.
            every: local steps between averages. Or a time of local steps, as ``"30s"``: the first
                site whose time is over begins an average, and calls the others; so faster sites
                make more steps. Or ``anabranch.Moved(by=...)``: a site whose model has moved so far
                does.
            buffers: beside ``parameters`` that are no model: the model's buffers, or a function
                that returns them. The function is called for each average, since a module may
                replace its buffers. Members begin with the same buffers. With each average (that of
                the first fragment), floating-point buffers become the weighted mean, and all others
                the first member's.
            outer: the outer optimiser; None takes the mean of the models.
            delay: local steps from the start of an average to the wait for it, at most ``every``.
                The model keeps the changes of these steps. 0 waits at once.
            fragments: into how many parts the model is cut (Streaming DiLoCo). Sites average one
                part after the other, each once in ``every`` steps, a multiple of ``fragments``.
            weight: of this site's model, > 0; an attribute of the returned object. ``"steps"``
                weighs by the local steps since this site's last average.
            wire: ``"float32"``, ``"float16"`` or ``"bfloat16"``, as for ``all_reduce``; or a format
                that compresses changes, with error feedback. ``"int8"``, ``"int4"`` and ``"int2"``
                are integers of so many bits, and a scale for each 256 elements. ``"top2"`` has the
                64 largest of each 4096 elements: their places, and 2 bits each.

        Raises:
            ValueError: the parameters or another argument are invalid; says which.
            TypeError: the weight is no number.
        """
        # Imported here, since a group that does not average needs none of it.
        from anabranch.exchange.compressed import Compressed
        from anabranch.group._average import (
            Calls,
            ModelAverage,
            average_of,
            period_of,
            trained_of,
        )
        from anabranch.train.averaging import FORMATS

        self._member.check_open()
        how, period = average_of(outer, delay, fragments, wire), period_of(every)
        travels = FORMATS[how.wire]

        def mean(part: list[Any], beside: list[Any], weight: float, calls: bool) -> Handle:
            buffer = Tensors([*part, *beside], Op.MEAN)
            unfit = self._unfit(buffer, len(part))  # buffers beside it, as masks, may be infinite
            wire = Wire.FLOAT32 if travels.has_blocks else travels
            terms = Terms(Op.MEAN, wire, buffer.elements)
            return self._begin(buffer, terms, weight, calls=calls, unfit=unfit)

        def compressed(values: Any, lost: Any, weight: float, calls: bool) -> Handle:
            buffer = Compressed(values, lost, weight, travels)
            unfit = self._unfit(Tensors([values]), 1)
            terms = Terms(Op.MEAN, travels, buffer.elements)
            return self._begin(buffer, terms, weight, calls=calls, unfit=unfit)

        def gather(data: bytes) -> dict[str, bytes]:
            return dict(zip(self.sites, self.all_gather(data), strict=True))

        def is_called() -> bool:
            # In the loop, so that averages begun before are counted.
            agent = self._member.for_exchanges().agent
            called: bool = self._member.thread.run(now(partial(agent.is_awaited, self._channel)))
            return called

        def ask_ahead(elements: int) -> None:
            agent = self._member.for_exchanges().agent
            terms = Terms(Op.MEAN, travels, travels.padded(elements))
            self._member.thread.submit(now(partial(agent.ask_ahead, terms, self._channel)))

        made = Calls(
            mean,
            compressed,
            copy=partial(self.broadcast, async_op=True),
            gather=gather,
            is_called=is_called,
            is_rounded=wire in ("float16", "bfloat16"),
            now_s=self._member.site.now_s,
            is_over=lambda: self.is_over,
            ask_ahead=None if period.asks_moved else ask_ahead,
            settle=self.settle,
            advise=self._advise,
        )
        self._is_hint_due = False  # an average makes models alike, or fails where they differ
        if is_module(parameters):
            if buffers is not None:
                raise ValueError("a model has its buffers; give buffers= beside parameters alone")
            parameters, buffers = trained_of(parameters), partial(buffers_of, parameters)
        elif not callable(buffers):
            held = [] if buffers is None else [*several(buffers)]
            buffers = lambda: held  # noqa: E731
        given = several(parameters)
        return ModelAverage(made, self.site, given, buffers, period, how, weight)

    def _advise(self, advice: str) -> None:
        if self.rank == 0:  # the others measure much the same
            _log.warning("%s: %s", self.site, advice)

    def gossip(
        self,
        parameters: Any,
        *,
        every: int | str | AnyPeriod,
        weight: float = 1.0,
        wire: Literal["float32", "float16", "bfloat16"] | None = None,
    ) -> ModelGossip:
        """Mix models with those of neighbours, between the sites' local steps.

        The scheduler needs a ``gossip`` setting: it says how many neighbours get a model, and by
        which rule a site mixes. Every member calls this once, first. Then it calls
        :meth:`ModelGossip.step` after each step of its optimiser::

            gossip = group.gossip(model, every=4)
            for batch in loader:
                compute(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                if not gossip.step():
                    break  # a stop rule ends the run
            gossip.finish()  # all models become their weighted mean, bit for bit

        No step waits for another site, unless the scheduler's ``most_ahead`` bounds a site's lead.
        All sites begin with the first member's model, and may make unequal numbers of steps. Until
        all have called ``finish``, no other exchange or gathering is possible. If a site is lost,
        the others continue without it, unless the scheduler's ``on_loss`` is ``abort``. No site
        joins later or again.

        Memory beside the model, in copies of it: one flat copy, one for received letters, at most
        two for letters being sent, and with the rule ``pairs`` one for each neighbour that has not
        confirmed an answer.

        Args:
            parameters: a model: then its parameters that need gradients are mixed, all float32. The
                buffers in its ``state_dict`` stay each site's own until ``finish``, since late
                letters could make a variance negative. Or parameters, as for ``all_reduce``.
            every: local steps between letters, a time of them as ``"30s"``, or
                ``anabranch.Moved(by=...)``.
            weight: of this site's model in the mean, > 0.
            wire: as for ``all_reduce``.

        Raises:
            ValueError: an argument is invalid, or the group does not gossip, or another site gives
                another model, ``every`` or wire; says which.
            TypeError: the weight is no number.
            RunAborted: the group has ended; names the cause.
        """
        if self._channel:
            raise ValueError("a subgroup does not gossip; call gossip() of the whole group")
        self._is_hint_due = False
        member = self._member
        settings = member.for_gossip()
        # Imported here, since other groups need none of it.
        from anabranch.group._gossip import Calls, ModelGossip

        calls = Calls(
            member.check_open,
            member.run,
            partial(member.start, member.site, None),
            self._exchanged,
            partial(self._has_ended, self._present.admissions),
            lambda: self.on_nan == "raise",
        )
        made = ModelGossip(calls, member.site, settings, parameters, every, weight, wire)
        member.gossip = made
        return made

    # --- newcomers

    def admit(self, state: Any) -> Any | None:
        """Admit the sites that wait to join, and hand them the state of training.

        Every member calls it at the same place, such as before each step. If no site waits, it
        costs a round trip to the scheduler. If one does, the members copy the state, send it in the
        background, and continue at once. A newcomer to a running group calls this first, and
        continues from the state that it returns. It then repeats the exchanges that the others have
        made meanwhile. These return at once, without its contribution, until it has caught up. So
        one program serves all sites, whenever they join::

            step = 0
            while step < 1000:
                state = group.admit(lambda: {"model": model.state_dict(), "step": step})
                if state is not None:
                    model.load_state_dict(state["model"])
                    step = state["step"]
                ...

        At a group's first call, all sites get the first site's state, so that they begin alike.
        Subgroups made before an admission do not have the new sites; make them again.

        Args:
            state: dictionaries, lists and tuples of tensors or arrays of any type, numbers, strings
                and bytes; or a function that returns them, called only if a site needs the state.
                Tensors must be alike at all members, since each member sends parts of them. All
                else comes from the first member. If buffers differ between members, as those of
                batch normalisation do, average them before this call.

        Returns:
            The state, at each site that receives it: a newcomer, or at the group's first call every
            site but the first. Otherwise None.

        Raises:
            ValueError: the group begins, and the state has a value of another type; says where.
            ExchangeError: this site is new, and a member's state has a value of another type, or
                members' states differ in their tensors' names, types or shapes. It names the
                members, which log it and continue. Or another member makes another call; names it.
            RunAborted: the group has ended; names the cause.
        """
        if self._channel:
            raise ValueError("a subgroup lets no site in; call admit() of the whole group")
        site = self._member.for_admission()
        self._is_hint_due = False
        found = None
        while True:
            admitted = self._member.run(site.agent.admit())
            self._present.admitted(admitted.members)
            if not admitted.newcomers:
                break
            if self._watch is not None:
                self._watch.let_in(admitted.follows)
            is_holder = self.index in admitted.holders
            offer = Offer(state, admitted.follows) if is_holder else None
            try:
                handed = self._member.run(site.hand_over(admitted, offer))
            except NoneHasIt:
                continue  # in the next admission, another member has the state
            self._present.are_left(self._present.admissions, handed.members)
            found = handed.state
            break
        if not site.agent.holds_state:
            self._member.thread.run(now(site.agent.has_state))
        return found

    # --- a served model

    def serve(
        self,
        parameters: Iterable[Any],
        *,
        buffers: Iterable[Any] = (),
        learning_rate: float,
        momentum: float = 0.0,
        optimizer: Literal["sgd", "adam"] = "sgd",
        schedule: AnySchedule | None = None,
    ) -> None:
        """Serve the model from the roots of the plan's trees; every member calls this once, first.

        The group's scheduler needs a pace (``anabranch scheduler --pace``). A site that comes late,
        or back as another process, gets the model by its first :meth:`pull`. After that, it may
        call only :meth:`pull` and :meth:`push`.

        Args:
            parameters: float32 tensors; all ranks begin with rank 0's values.
            buffers: a model's other state, such as ``model.buffers()``: float32, and integers up to
                2^24. Each push sends their current values. A step moves float32 buffers towards
                their mean, and takes the largest of integers. Under a barrier, which sums updates
                on the way, it takes the integers' mean. Buffers that are not given stay each site's
                own.
            learning_rate, momentum, optimizer: of the step that servers take.
            schedule: how the learning rate changes from step to step, such as
                ``anabranch.train.schedules.InversePower(power=0.75)``; None: it is constant.
        """
        held = list(parameters), list(buffers)
        self._member.serve(*held, learning_rate, momentum, optimizer, schedule)

    def pull(self) -> bool:
        """Wait until this worker may compute, and copy the model into the parameters.

        Returns:
            Whether to compute another update. False once the run is over; then the parameters hold
            the final model. If the scheduler sends that to other workers only
            (``Serving.last_to``), the parameters hold an earlier model, and a warning says so.

        Raises:
            RunAborted: the group has ended; names the cause.
        """
        return self._member.pull()

    @property
    def batch_size(self) -> int | None:
        """The number of samples for the next update's batch, from the latest :meth:`pull`.

        None if the group's load does not set it, or if no update is due.
        """
        return self._member.batch_size

    def push(
        self,
        gradients: Iterable[Any],
        *,
        samples: int = 0,
        weight: float = 1.0,
        loss: float | None = None,
    ) -> None:
        """Send this worker's update to the servers; returns at once.

        An update that would come too late for the pace is not sent (SAFA).

        Args:
            gradients: float32, in the order of the served parameters; copied.
            samples: of the update's batch, for paces that tune batches.
            weight: of the update in the merge, > 0.
            loss: of the update's batch, for the log, a stop rule's target, and merge rules that
                weigh by it.

        Raises:
            ValueError: gradients, samples, weight or loss are invalid; says which.
            TypeError: the weight is no number.
            RunAborted: the group has ended; names the cause.
        """
        self._member.push(list(gradients), samples, weight, loss, self.on_nan == "raise")

    # --- measurements, reports, and the end

    @property
    def stats(self) -> Stats:
        """This site's measurements of the group's traffic."""
        member = self._member
        member.check_open()
        names = self._names
        sent = member.thread.run(now(member.site.agent.sent_bytes))
        meter = member.site.meter
        latest = {} if meter is None else member.thread.run(now(lambda: dict(meter.latest)))
        share = None
        if self._rounds and self._channel == 0 and not member.assumes_rates:
            done = self._rounds[-1]
            share = 8 * done.size_bytes / member.limit_rate_bps / done.seconds
        return Stats(
            {names[target]: count for target, count in sent.items()},
            {names[source]: (rate.rate_bps, rate.latency_s) for source, rate in latest.items()},
            tuple(self._rounds),
            share,
            self._incomplete.count,
        )

    def report_loss(self, loss: float, step: int | None = None, samples: int = 1) -> None:
        """Report this site's loss to the scheduler, for its log, `anabranch status` and metrics.

        It waits for no other site.

        Args:
            loss: a mean over samples; NaN and infinities count as diverged.
            step: the step of this loss, >= 0. If not given, the one after the last reported step;
                the first is 1.
            samples: the number of samples in the mean, which weighs this loss beside other sites'.

        Raises:
            ValueError: ``loss`` is no number, ``step`` no integer >= 0, or ``samples`` no integer
                >= 1; or ``serve`` or ``gossip`` has to come first.
        """
        member = self._member
        member.check_started()
        loss = number_of("loss", loss)
        step = count_of("step", member.steps_told + 1 if step is None else step, 0)
        samples = count_of("samples", samples, 1)
        member.steps_told = step
        member.thread.run(now(partial(member.site.report_loss, loss, step, samples)))

    def report_accuracy(self, accuracy: float, step: int | None = None) -> None:
        """Report the accuracy of this site's model to the scheduler.

        The stop rule for an accuracy uses it. If all members have the same model, one of them may
        report for all.

        Args:
            accuracy: the share of correct answers on held-out data, in [0, 1].
            step: the step after which it was measured, >= 0. If not given, that of the last
                reported loss.

        Raises:
            ValueError: ``accuracy`` is not in [0, 1], or ``step`` is no integer >= 0.
        """
        member = self._member
        member.check_started()
        step = count_of("step", member.steps_told if step is None else step, 0)
        should_be = "a number from 0 to 1"
        told = number_of("accuracy", accuracy, should_be)
        if not 0 <= told <= 1:
            raise ValueError(f"accuracy is {accuracy!r}, must be {should_be}")
        member.thread.run(now(partial(member.site.report_accuracy, told, step)))

    def close(self) -> None:
        """Leave, and close.

        Waits until this site's calls have ended, and all others have left or one makes a call
        without this site. A worker of a served model leaves at once.

        Raises:
            RunAborted: the group has ended before; names the cause.
        """
        self._member.close(None)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._member.close(error)


def join(
    scheduler: str | None = None,
    site: str | None = None,
    *,
    token: str | None = None,
    host: str | None = None,
    port: int | None = None,
    advertise: str | None = None,
    outbound_only: bool = False,
    tls: str | Path | None = None,
    insecure: bool = False,
    patience_s: float = 60.0,
    on_nan: OnNan = "raise",
    on_unlike: OnUnlike = "raise",
) -> Group:
    """Join a group, and wait until it begins.

    It begins once every site of its overlay has joined, or as many as its scheduler's
    ``begin_with``. The members of a running group admit this site, see :meth:`Group.admit`.

    Args:
        scheduler: host:port of ``anabranch scheduler``; ``$ANABRANCH_SCHEDULER`` if not given.
        site: this site's name in the overlay; ``$ANABRANCH_SITE`` if not given. If that is unset,
            too: the name in ``$ANABRANCH_SITES`` at the index in ``$SLURM_PROCID`` or
            ``$JOB_COMPLETION_INDEX``.
        token: the group's shared secret; ``$ANABRANCH_TOKEN`` if not given.
        host: the address at which other sites connect to this one; ``"0.0.0.0"`` for all addresses
            of the machine. ``$ANABRANCH_HOST`` if not given, or the address from which this site
            reaches the scheduler. If that is a loopback address, only sites on this machine can
            connect.
        port: likewise, ``$ANABRANCH_PORT``; 0 takes a free one.
        advertise: the host name or address at which others reach this site;
            ``$ANABRANCH_ADVERTISE`` if not given. If that is unset, too: ``host``, or
            ``$SLURMD_NODENAME`` where ``host`` means all addresses.
        outbound_only: no other site can connect to this one, as behind NAT. This site makes all
            connections, and they carry data both ways. It excludes the three above. Or
            ``$ANABRANCH_OUTBOUND_ONLY`` is 1.
        tls: the folder of this site's certificate and key, as ``anabranch certs`` makes them. All
            traffic is then encrypted, and every process proves its identity by its certificate.
            ``$ANABRANCH_TLS`` if not given.
        insecure: permit addresses off this machine without TLS; or ``$ANABRANCH_INSECURE`` is 1.
        patience_s: how long to retry while no scheduler answers, since it may start later. After a
            few seconds, a warning of the logger ``anabranch`` says so.
        on_nan, on_unlike: attributes of the group, see :class:`Group`.

    Raises:
        ValueError: an argument is missing; says how to give it. Or others could not reach this
            site.
        LinkError: the scheduler cannot be reached.
        PeerError: the process at that address is no scheduler, or only one end speaks TLS, or one
            end does not trust the other's certificate. There is no retry.
        RunAborted: the scheduler refused this site; says why.

    Usable as ``with anabranch.join(...) as group:``. The end of the block leaves the group. If an
    exception leaves the block, the other sites get this site's name and the error.
    """
    place = find_place(
        os.environ,
        scheduler=scheduler,
        site=site,
        token=token,
        host=host,
        port=port,
        advertise=advertise,
        outbound_only=outbound_only,
        tls=None if tls is None else str(tls),
        insecure=insecure,
    )
    say = partial(_log.warning, "%s: %s", place.site)
    return join_at(
        place,
        patience_s,
        say=say,
        on_nan=on_nan,
        hints=True,
        on_unlike=on_unlike,
    )


def join_at(
    place: Place,
    patience_s: float = 60.0,
    gives_up: Callable[[], str | None] | None = None,
    say: Callable[[str], None] | None = None,
    on_nan: OnNan = "raise",
    hints: bool = False,
    on_unlike: OnUnlike = "raise",
) -> Group:
    """Join a group as :func:`join` does, without a look at the environment.

    Args:
        place: the scheduler, this site, and its addresses.
        patience_s: see :func:`join`.
        gives_up: called every half second while this site waits to join, in another thread. It
            returns None, or the reason to stop waiting.
        say: called with a line when the scheduler or the other sites take long; None for silence.
        on_nan, on_unlike: see :class:`Group`.
        hints: whether to warn once if the first mean comes before a call that makes models alike,
            and to compare models as :meth:`Group.all_reduce` says.

    Raises:
        ValueError, LinkError, RunAborted: see :func:`join`. RunAborted also if ``gives_up`` returns
            a reason.
    """
    try:
        where = addresses.parse(place.scheduler)
    except ValueError as error:
        raise ValueError(f"scheduler: {error}") from None
    if on_nan not in ("raise", "allow"):
        raise ValueError(f"on_nan is {on_nan!r}, must be 'raise' or 'allow'")
    if on_unlike not in ("raise", "allow"):
        raise ValueError(f"on_unlike is {on_unlike!r}, must be 'raise' or 'allow'")
    if not where[1]:
        raise ValueError(f"scheduler is {place.scheduler!r}; give the port that it printed")
    host = place.host
    if place.advertise is None and host is not None and addresses.is_wildcard(host):
        raise ValueError(f"host is {host!r}, all addresses; give advertise=, where others reach it")
    for each in (where[0], host, place.advertise):
        if (
            not (place.insecure or place.tls)
            and each is not None
            and not addresses.is_loopback(each)
        ):
            raise ValueError(
                f"{each} is off this machine, and traffic would not be encrypted; give tls=, the "
                "folder of this site's certificate, or say insecure=True if the network between is "
                "your own"
            )
    credentials = None
    if place.tls is not None:
        credentials = Credentials(Path(place.tls), identity_of(place.site))
        credentials.check()
    listen = None if place.outbound_only else (host, place.port)
    shown = None if place.outbound_only else place.advertise
    door = Door(where, place.site, place.token, listen, shown, patience_s, gives_up, say)
    member = Member(door, credentials)
    return Group(member, 0, member.first_members, on_nan, hints, on_unlike)
