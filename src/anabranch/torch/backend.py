"""The torch.distributed backend ``anabranch``: an unmodified DDP or FSDP script over a group.

Theory of operation
-------------------

Each call takes one of four ways::

    all_reduce (sum, mean, max, min of float32,        -> exchange of the group, over its plan
      float16, bfloat16), broadcast
    barrier, all_gather up to 64 KiB a rank,           -> gathering through the scheduler
      calls without elements
    everything else                                    -> gathering that compares the calls, then
                                                          gloo (torch/_gloo.py)
    send, recv                                         -> gloo at once, since only two ranks call it

A collective passes through these parts::

    DDP, FSDP, the program's threads
      |  _order: a lock that fixes the order of calls
      v
    Starter: begins calls in that order; copies of GPU tensors come before their exchange
      |
      v
    the group's thread: the exchange or gathering ends, the Work succeeds or fails
      |
      v
    Work.wait(), and callbacks of its future

A *work* is under way until the first of three events settles it: its result, its deadline, or the
end of the process group. Later events change nothing. A *process group* runs until it is *over*
(``_over`` has the reason) or *closed*. It is over once a collective has exceeded its timeout or
ended with ``RunAborted``; a late ``send`` or ``recv`` ends gloo alone. ``shutdown`` also ends it if
the wait for a call was interrupted. From then on every call at this rank fails with that reason.

What must never happen:

- *Ranks begin calls in different orders.* The group pairs calls by their order. So every call
  begins while it holds ``_order``, and calls in callbacks of a future raise an error.
- *Only some ranks call gloo.* Its calls would wait for each other or abort the process. So all
  ranks describe the call first, and a mismatch is an error at each.
- *A call after a late one meets another rank's earlier call.* So one late call ends the process
  group. The whole group ends too, at all ranks, if the call may still write its tensors
  (``Work.exchanges``), if this process group owns the group, or if it is being destroyed.
- *A collective runs in torch's base class.* That would wait for gloo with the interpreter's lock
  held. Gloo's threads wait for that lock, and hold gloo's. So this class defines every collective
  that torch has.
- *The interpreter ends with gloo's threads alive.* ``_end_at_exit`` destroys gloo before.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import torch
import torch.distributed as dist

from anabranch.group import Group
from anabranch.group import words as words_of
from anabranch.group.words import Words, raw_of
from anabranch.group.writing import overwrite
from anabranch.net.errors import RunAborted
from anabranch.torch._agreement import CallDescription, agreed
from anabranch.torch._gloo import Gloo, options_of
from anabranch.torch._gloo_calls import COLLECTIVES, Call, described
from anabranch.torch._rendezvous import Membership, Options, meet, share, telling
from anabranch.torch._works import (
    Begun,
    Deadlines,
    Starter,
    Work,
    check_may_begin,
    complete,
    untraced,
)

__all__ = ["AnabranchProcessGroup", "Options", "group_of", "process_group"]

T = TypeVar("T", bound=dist.Work)
_log = logging.getLogger("anabranch")
_EXCHANGED = (torch.float32, torch.float16, torch.bfloat16)
_SMALL_BYTES = 1 << 16  # the most that each rank gathers through the scheduler
_OPS = {"SUM": "sum", "AVG": "mean", "MAX": "max", "MIN": "min"}
_TO_AND_FRO = {"recv": "recv from", "recv_anysource": "recv from any rank", "send": "send to"}
_HERE = ("allgather", "allreduce", "allreduce_coalesced", "broadcast")

_Base: Any = dist.ProcessGroup  # its overloads are wider than what torch.distributed calls


class AnabranchProcessGroup(_Base):  # type: ignore[misc]
    """A process group whose ranks are the sites of a group.

    It is one class since torch.distributed expects all collectives of a backend on one object.

    After the loss of a link, calls use other links to the same ranks, if there are any. The loss of
    a rank ends the group at all others, whose errors name the rank. torchrun expects that, and
    restarts all ranks.

    A collective that exceeds its timeout ends this process group: see the head of this file. A send
    or receive that exceeds it ends gloo alone.

    Args:
        membership: the group, and the sites' names by rank.
        gloo: for calls that the group does not carry.
        owns: whether to leave the group when this process group is destroyed.
        rank, size, timeout: see torch.distributed.
    """

    def __init__(
        self,
        membership: Membership,
        gloo: Gloo,
        owns: bool,
        rank: int,
        size: int,
        timeout: timedelta,
    ) -> None:
        super().__init__(rank, size)
        self.membership = membership
        self._gloo = gloo
        self._owns = owns
        self._timeout = timeout
        self._starter = Starter()
        self._order = threading.Lock()  # DDP calls from the thread of its backward pass, too
        self._name = ""
        self._description = ""
        self._is_closed = False
        self._over = ""  # why this process group is over; empty while it runs
        self._deadlines = Deadlines(self._is_late)
        self._waits_in: int | None = None  # the thread whose calls end before they return
        self._process = os.getpid()
        atexit.register(self._end_at_exit)

    @property
    def group(self) -> Any:
        """The group; or a ``Part``, if another rank of this site has joined it."""
        return self.membership.group

    # --- collectives

    def allreduce(self, tensors: Any, opts: Any = None, **other: Any) -> Any:
        """Reduce to the sum, mean, largest or least elements; gloo carries the rest."""
        given = _several(tensors)
        op = _op(other.get("op", opts))
        if op == "mean" and any(map(_is_whole, given)):
            return self._mean_of_whole(given, opts)
        if op is None or not all(map(_is_exchanged, given)):
            return self._by_gloo("allreduce", given, *_if_given(opts), **other)
        if not sum(each.numel() for each in given):
            return self._meet(described("all_reduce", given), given, opts)

        def exchange(staged: list[torch.Tensor]) -> Begun:
            handle = self.group.all_reduce(staged, op=op, async_op=True)
            return handle, _as_it_is

        return self.exchange("all_reduce", given, exchange, opts)

    def _mean_of_whole(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Return the mean of integers, for Lightning's metrics; all ranks reject a fraction."""
        if any(each.dtype == torch.bool for each in tensors):
            raise ValueError("all_reduce by AVG of bool, which has no mean; use MAX or MIN")
        for each in tensors:
            if each.dtype != torch.int64:  # a sum of smaller integers may overflow their type
                kind = str(each.dtype).removeprefix("torch.")
                raise ValueError(
                    f"all_reduce by AVG of {kind}; convert to float32, or to int64 where the mean "
                    "is an integer"
                )
        sums: Any = dist.AllreduceOptions()
        sums.reduceOp = dist.ReduceOp.SUM
        sums.timeout = self._limit(opts)
        totals = [each.detach().clone() for each in tensors]
        self._by_gloo("allreduce", totals, sums).wait()
        for total in totals:
            if bool((total % self.size()).any()):
                raise ValueError(
                    "all_reduce by AVG of int64, whose mean has a fraction here; use SUM and "
                    "divide, or convert to float32; the tensors are unchanged"
                )
        for each, total in zip(tensors, totals, strict=True):
            overwrite(each, total.div_(self.size(), rounding_mode="trunc"))
        return _done("all_reduce", tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce several tensors in one exchange, as ``allreduce`` does."""
        alike = len({each.dtype for each in tensors}) == 1 and all(map(_is_exchanged, tensors))
        if not alike or _op(opts) is None:
            return self._by_gloo("allreduce_coalesced", tensors, *_if_given(opts))
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, **other: Any) -> Any:
        """Overwrite tensors of any type by the root's, bit for bit."""
        given = _several(tensors)
        root = opts if isinstance(opts, int) else other.get("root")
        if root is None:
            root = opts.rootRank
        if any(each.layout != torch.strided for each in given):
            return self._by_gloo("broadcast", given, *_if_given(opts), **other)
        if not sum(each.numel() for each in given):
            return self._meet(described("broadcast", given), given, opts)
        name = self.membership.names[root]

        def exchange(staged: list[torch.Tensor]) -> Begun:
            words = [Words(each) for each in staged]
            mine, heard = words_of.described(staged), words_of.described(staged)
            sent = [*(each.words for each in words), heard]
            handle = self.group.broadcast(sent, root=name, async_op=True)

            def finish() -> None:
                for each in words:
                    each.finish()
                if mine.view(torch.int32) != heard.view(torch.int32):
                    raise ValueError(
                        f"broadcast from rank {root} of tensors of other types or sizes than this "
                        f"rank's {_listed(staged)}; what these hold is undefined"
                    )

            return handle, finish

        return self.exchange("broadcast", given, exchange, opts)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Gather all ranks' tensors; gloo carries large ones."""
        given = _several(input_tensors)
        tensor = given[0]
        if (
            len(given) > 1
            or tensor.layout != torch.strided
            or tensor.numel() * tensor.element_size() > _SMALL_BYTES
        ):
            return self._by_gloo("allgather", output_tensors, input_tensors, *_if_given(opts))
        outputs = output_tensors[0] if isinstance(output_tensors[0], list) else output_tensors
        if len(outputs) != self.size():
            raise ValueError(f"all_gather into {len(outputs)} tensors from {self.size()} ranks")
        for output in outputs:
            if output.dtype != tensor.dtype or output.numel() != tensor.numel():
                raise ValueError(
                    f"all_gather of a tensor of {tuple(tensor.shape)} {tensor.dtype} into one of "
                    f"{tuple(output.shape)} {output.dtype}; all are alike"
                )

        def finish(parts: list[bytes]) -> list[list[torch.Tensor]]:
            for output, part in zip(outputs, parts, strict=True):
                if part:
                    values = torch.frombuffer(bytearray(part), dtype=output.dtype)
                    overwrite(output, values.view(output.shape))
            return [list(outputs)]

        return self._gather(described("all_gather", given), _bytes_of(tensor), finish, opts)

    def barrier(self, opts: Any = None, **other: Any) -> Any:
        """Wait until every rank has called it."""
        return self._meet("barrier", [], other.get("timeout", opts))

    def _meet(self, what: str, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Return a work that is done once every rank has called this; for calls without elements.

        Such calls count in the order of calls. So a rank whose tensors have elements gets an error.
        """
        return self._gather(what, b"", lambda _: tensors, opts)

    def _gather(
        self, what: str, data: bytes, finish: Callable[[list[bytes]], list[Any]], opts: Any
    ) -> Work:
        self._check_may_call()
        with self._order:
            work = self._work(what, opts)
            self._starter.in_order(
                lambda: complete(
                    work,
                    partial(self._describe, what, data),
                    lambda gathered: work.succeed(finish(self._agreed(what, gathered))),
                )
            )
        return self._begun(work)

    def _describe(self, what: str, data: bytes = b"") -> Future[dict[str, bytes]]:
        """Send all ranks a description of this call, in the order of all calls."""
        said = msgspec.msgpack.encode(CallDescription(what, data, self._gloo.over))
        return cast("Future[dict[str, bytes]]", self.group.begin_gather(said, what))

    def _agreed(
        self, what: str, gathered: dict[str, bytes], is_by_gloo: bool = False
    ) -> list[bytes]:
        return agreed(what, self.rank(), self.membership.names, gathered, is_by_gloo)

    def exchange(
        self,
        what: str,
        tensors: list[torch.Tensor],
        exchange: Callable[[list[torch.Tensor]], Begun],
        opts: Any = None,
    ) -> Work:
        """Begin an exchange of the group, in the order of all calls of this process group.

        Args:
            what: the call in words, for messages.
            tensors: of one device; overwritten by the result.
            exchange: begins it; see :meth:`anabranch.torch._works.Starter.start`.
            opts: the options of torch.distributed, or a timeout.

        Raises:
            ValueError: the tensors are on several devices.
            RuntimeError: this is a callback of a future, or this process group is over.
        """
        devices = {each.device for each in tensors}
        if len(devices) > 1:
            raise ValueError(f"{what} of tensors on {sorted(map(str, devices))}; give one device's")
        self._check_may_call()
        kinds = ", ".join(sorted({str(each.dtype).removeprefix("torch.") for each in tensors}))
        elements = sum(each.numel() for each in tensors)
        with self._order:
            work = self._work(
                f"{what} of {elements} elements of {kinds}",
                opts,
                [each for each in devices if each.type != "cpu"],
                exchanges=True,
            )
            self._starter.start(work, tensors, exchange)
        return self._begun(work)

    def _begun(self, work: T) -> T:
        if self._waits_in == threading.get_ident():
            work.wait()
        return work

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the context, each call of this thread ends before it returns.

        Callbacks of the call's future then run at once, in this thread. So collectives that they
        call come in the same order at all ranks.
        """
        before, self._waits_in = self._waits_in, threading.get_ident()
        try:
            yield
        finally:
            self._waits_in = before

    def _by_gloo(self, name: str, *given: Any, **named: Any) -> Work:
        """Make a collective by gloo, once all ranks have described the same call.

        Args:
            name: the name of gloo's method.
            given, named: its arguments; it writes to the first.
        """
        self._check_may_call()
        call = Call(name, given, named)
        opts = named.get("opts", given[-1])
        with self._order:
            work = self._work(call.what, opts, call.devices)

            def carry(gathered: dict[str, bytes]) -> None:
                self._agreed(call.what, gathered, is_by_gloo=True)
                self._gloo.carry(work, call)

            begin = partial(self._describe, call.what)
            self._starter.in_order(lambda: complete(work, begin, carry))
        return self._begun(work)

    def _to_and_fro(self, name: str, tensors: Any, *given: Any, **named: Any) -> Any:
        """Send or receive by gloo, at once: only two ranks call it, so all cannot agree on it."""
        self._check_may_call()
        peer = "" if name == "recv_anysource" else f" {given[0]}"
        what = f"{_TO_AND_FRO[name]}{peer}"
        return self._gloo.to_and_fro(name, what, self._timeout, tensors, *given, **named)

    def _check_may_call(self) -> None:
        check_may_begin()
        if self._over:
            raise RuntimeError(
                f"this process group is over: {self._over}; destroy_process_group(), and begin anew"
            )

    def _work(
        self,
        what: str,
        opts: Any,
        devices: Sequence[torch.device] = (),
        exchanges: bool = False,
    ) -> Work:
        work = Work(what, devices, self._has_settled, exchanges)
        self._deadlines.add(work, self._limit(opts).total_seconds())
        return work

    def _has_settled(self, work: Work) -> None:
        self._deadlines.remove(work)
        if isinstance(work.exception(), RunAborted):
            self._over = self._over or str(work.exception())

    def _is_late(self, work: Work, limit_s: float) -> None:
        """End this process group: later calls would meet other ranks' earlier calls."""
        error = RuntimeError(
            f"{work.what}: the timeout of {limit_s:g} s is over: a rank has not called it, or the "
            "links carry it more slowly; give init_process_group a longer one"
        )
        if not work.fail(error):
            return  # the work has ended just now
        self._is_over(error)
        # A late barrier of a subgroup moves no elements. It ends the whole group only while the
        # subgroup is being destroyed, as it would hold up that destruction.
        if self._owns or work.exchanges or self._is_closed:
            self.membership.fail(error)

    def _is_over(self, error: Exception) -> None:
        """Fail the calls under way, and refuse later ones."""
        self._over = self._over or str(error)
        self._gloo.end(str(error))
        for other in self._deadlines.under_way():
            other.fail(RuntimeError(f"{other.what}: this process group is over: {self._over}"))

    def _limit(self, opts: Any) -> timedelta:
        given = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        return given if given is not None and given > timedelta(0) else self._timeout

    # --- the interface that torch.distributed expects of a process group

    # torch reads these on the backend that `_get_backend` returns.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        return [torch.device(each) for each in kinds]

    def _get_backend(self, device: torch.device) -> Any:
        """Return the backend of a device: this process group serves all of them."""
        return _Backend(self)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: this backend allocates no tensors for FSDP."""
        return False

    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return "anabranch"

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name that torch.distributed has given this group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name that torch.distributed gives this group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description that torch.distributed has given this group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the description that torch.distributed gives this group."""
        self._description = description

    def name(self) -> str:
        """Return the backend's name."""
        return "anabranch"

    def get_group_store(self) -> Any:
        """Return the store of the gloo group."""
        return self._gloo.store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of later collectives."""
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the group numbers its exchanges."""

    def _get_sequence_number_for_group(self) -> int:
        return self._gloo.sequence_number()

    def _wait_for_pending_works(self) -> None:
        self.barrier().wait()

    def shutdown(self) -> None:
        """End gloo, and leave the group if this process group owns it."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._end_at_exit)
        self._starter.close()
        self._give_up_interrupted()
        self._gloo.close()  # before leaving, so that no rank's gloo waits longer for this one
        try:
            if self._owns:
                self.membership.close()
        # Not raised again: the calls have raised it, and torch would stay half initialised.
        except RunAborted as error:
            if not self._over:
                _log.warning("this process group had ended before it was destroyed: %s", error)
        finally:
            self._deadlines.close()

    def _give_up_interrupted(self) -> None:
        """End the group if an exception interrupted a wait: that call may never end."""
        for work in self._deadlines.under_way():
            if work.is_given_up and not self._over:
                error = RunAborted(f"{work.what}: this rank was interrupted in it")
                self._is_over(error)
                self.membership.fail(error)

    def _end_at_exit(self) -> None:
        """Destroy gloo before the interpreter ends, if the program has not."""
        if self._is_closed or os.getpid() != self._process:  # a fork has none of its threads
            return
        self._is_closed = True
        if self._deadlines.under_way():
            self._gloo.end("the program has ended")
        self._gloo.close()

    def abort(self) -> None:
        """Do as ``shutdown``."""
        self.shutdown()


class _Backend:
    """The backend object of a device; PyTorch only queries it."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def __init__(self, group: AnabranchProcessGroup) -> None:
        self._group = group

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The type for which PyTorch checks by ``isinstance`` before it sets a timeout.

        With another type, ``_set_pg_timeout`` would warn and set none.
        """
        return dist.ProcessGroupGloo

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def name(self) -> str:
        return "anabranch"


def _elsewhere(name: str) -> Callable[..., Any]:
    def call(self: AnabranchProcessGroup, *given: Any, **named: Any) -> Any:
        if name in _TO_AND_FRO:
            return self._to_and_fro(name, *given, **named)
        return self._by_gloo(name, *given, **named)

    call.__name__ = name
    call.__doc__ = "By gloo."
    return call


for _name in {*COLLECTIVES, *_TO_AND_FRO} - {*_HERE}:
    if hasattr(dist.ProcessGroup, _name):  # later torch releases have some that this one lacks
        setattr(AnabranchProcessGroup, _name, _elsewhere(_name))
untraced(AnabranchProcessGroup)


def process_group(given: Any, options: Any) -> AnabranchProcessGroup:
    """Make a process group; torch.distributed calls this at each of its ranks.

    Args:
        given: the store, ranks and timeout, as torch.distributed passes them to a backend.
        options: :class:`Options`; None takes them from the environment.

    Raises:
        ValueError, RunAborted: see :class:`Options` and
            :func:`anabranch.torch._rendezvous.meet`.
    """
    rank, size = given.group_rank, given.group_size
    store = _of_this_beginning(given.store, rank)
    with telling(store, rank, size):
        return _made(given, store, options)


def _made(given: Any, store: Any, options: Any) -> AnabranchProcessGroup:
    if options is not None and not isinstance(options, Options):
        raise ValueError(
            f"pg_options is a {type(options).__name__}; the backend anabranch takes "
            "anabranch.torch.backend.Options"
        )
    rank, size, timeout = given.group_rank, given.group_size, given.timeout
    gloo = options_of(store, timeout)  # may fail, so before other ranks wait in gloo for this one
    membership, owns = None, False
    if dist.is_initialized():
        membership = _part_of_all(given.global_ranks_in_group, str(given.group_id))
    if membership is None:
        how, owns = options or Options(), True
        if dist.is_initialized() and how.site is not None:
            membership = share(_world_store, store, rank, size, how, timeout)
        else:
            membership = meet(store, rank, size, how, timeout)
    try:
        inner = Gloo(store, rank, size, gloo, membership.group.watch_whole())
    except BaseException as error:
        if owns:  # the others may wait for this rank in gloo, and would never leave
            membership.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
            membership.close()
        raise
    return AnabranchProcessGroup(membership, inner, owns, rank, size, timeout)


def _part_of_all(ranks: list[int], name: str) -> Membership | None:
    """Return a subgroup of the default process group's group.

    Each process group has a name, and so a separate order of calls.

    Returns:
        None if the default process group is of another backend.
    """
    default = dist.group.WORLD
    if not isinstance(default, AnabranchProcessGroup):
        return None
    all_names = default.membership.names
    names = tuple(all_names[rank] for rank in ranks) if ranks else all_names
    part = group_of(default).subgroup(names, name=name)

    def fail(error: Exception) -> None:
        default._is_over(error)
        default.membership.fail(error)

    return Membership(part, names, _stay, fail)


def _stay() -> None:
    """Do nothing: a subgroup ends with the whole group."""


def _of_this_beginning(store: Any, rank: int) -> Any:
    """Return a view of the store without keys of earlier beginnings.

    Ranks begin again when torchrun restarts them. They also do when a program destroys its process
    groups and makes others with the same names. Each rank counts its beginnings in the store.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    begun = store.add(f"attempt {attempt}, begun by {rank}", 1)
    return dist.distributed_c10d.PrefixStore(f"attempt {attempt}, {begun}/", store)


def _world_store() -> Any:
    """Return a view of the default process group's store, without keys of earlier beginnings."""
    return _of_this_beginning(dist.distributed_c10d._get_default_store(), dist.get_rank())


def group_of(process_group: Any = None) -> Group:
    """Return the group under a process group, for calls that torch.distributed does not have.

    Args:
        process_group: of the backend anabranch; the default process group if not given.

    Raises:
        ValueError: the process group is of another backend, or another rank of this site has joined
            the group.
    """
    found = backend_of(process_group)
    if not isinstance(found.group, Group):
        raise ValueError("another rank of this site has joined the group; call group_of() there")
    return found.group


def backend_of(process_group: Any = None) -> AnabranchProcessGroup:
    """Return a process group, or the default one, after a check that it is of this backend.

    Raises:
        ValueError: the process group is of another backend.
    """
    found = dist.group.WORLD if process_group is None else process_group
    if not isinstance(found, AnabranchProcessGroup):
        raise ValueError(
            f"{found!r} is no process group of the backend anabranch; begin with "
            'init_process_group("anabranch")'
        )
    return found


def _as_it_is() -> None:
    """Do nothing: the tensors hold the result already."""


def _if_given(opts: Any) -> tuple[Any, ...]:
    """Return the options to pass on, if any: torch 2.7 refuses None, which later releases take."""
    return () if opts is None else (opts,)


def _several(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _op(opts: Any) -> str | None:
    """Return the group's name of an operation; None if the group does not have it."""
    op = getattr(opts, "reduceOp", opts)
    if op is None:
        return "sum"
    for name, ours in _OPS.items():
        if op == getattr(dist.ReduceOp, name):
            return ours
    return None


def _done(what: str, tensors: list[torch.Tensor]) -> Work:
    work = Work(what)
    work.succeed(tensors)
    return work


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _is_exchanged(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _EXCHANGED and tensor.layout == torch.strided


def _listed(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in tensors)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return raw_of(tensor.cpu()).numpy().tobytes()
