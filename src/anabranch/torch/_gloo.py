"""The gloo group beside the group: how ranks agree on a gloo call, and how gloo ends.

Gloo connects the ranks directly, and carries the calls that the group does not. A collective goes
this way::

    caller ------> group's thread -----------> "anabranch gloo" ---> "anabranch gloo waits"
    describes it   gathers descriptions        compares them,        waits for gloo, writes
                   in the order of all calls   calls gloo            results, ends the work

- If ranks make different gloo calls, these wait for one another, or the process aborts. So this
  module calls gloo only once all ranks have described the same call. One thread makes all calls, in
  the order of the agreements, since gloo pairs ranks' calls by their order.
- Sends and receives concern two ranks, and go to gloo at once.
- Gloo has no call that ends pending calls. But a wait that exceeds its own limit closes all of
  gloo's connections, and all pending calls fail, here and at the other ranks. ``end`` does that on
  purpose. Any failure leaves gloo without connections. Every later call fails with the same reason
  at all ranks, since a rank puts the reason into its description.
- ``close`` waits until all ranks have connected, since gloo fails at a rank whose peer closes while
  it connects. Then it destroys gloo in the thread that calls it, and no thread of this module
  outlives it. The destructor releases the interpreter's lock and acquires it again. If the
  interpreter ends meanwhile, it ends the thread that acquires the lock. This thread is then within
  C++ code that must not be left that way, and the process aborts.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from anabranch.net.errors import RunAborted
from anabranch.torch._gloo_calls import Call
from anabranch.torch._rendezvous import reached_at
from anabranch.torch._works import Work

_Gloo: Any = dist.ProcessGroupGloo
_Base: Any = dist.ProcessGroup
_INTERFACE = "GLOO_SOCKET_IFNAME"
_NO_LIMIT = timedelta(days=365)  # gloo's limit: process groups end late calls themselves
_AT_ONCE = timedelta(milliseconds=1)
_UNUSED_TAG = 0x7FFFFF00  # of a message that no rank sends
_ACCOUNT_S = 10.0  # for the group to name the rank that is gone, once gloo has lost a connection
_ENDED = "ended"  # key in the store: why the first rank ended its gloo
_GONE = "gone"  # key in the store: how many ranks have ended their gloo
_CONNECTED = "connected"  # key in the store: how many ranks have connected all others, or failed to
_CONNECTS_S = 30.0  # how long a rank that ends waits for others that still connect
_LOOKS_S = 0.5  # between two reads of that number
_ASKS_S = 0.1  # between two looks for the cause of a lost connection, or for who has connected
_TIMED_OUT = "Timed out waiting"  # in gloo's error
_LOST = "gloo/transport", "Application timeout"  # in gloo's errors of connections, and no others
_ADVICE = ". This is typically caused by"  # gloo's guesses follow, which do not fit this program


def options_of(store: Any, timeout: timedelta) -> Any:
    """Return gloo's options: the addresses that it connects, and the timeout of that.

    Raises:
        RuntimeError: an interface does not exist.
    """
    interfaces = os.environ.get(_INTERFACE)
    options = _Gloo._Options()
    options._timeout = timeout
    if interfaces:
        options._devices = [_Gloo.create_device(interface=each) for each in interfaces.split(",")]
    else:  # gloo's default is the address of this machine's name, which may be loopback
        options._devices = [_Gloo.create_device(hostname=reached_at(store))]
    return options


class Gloo:
    """A gloo group of all ranks, for one process group.

    Args:
        store: shared by all ranks, for this group alone.
        rank, size: this process's rank, and the number of ranks.
        options: the result of :func:`options_of`.
        whole: fails once a rank is lost, or with the error that ends the underlying group early.
            Gloo ends then, since it cannot work without one of its ranks.

    Raises:
        RunAborted: the group ended while gloo connected the ranks; names the cause.
        RuntimeError: gloo could not connect the ranks for another reason.
    """

    def __init__(self, store: Any, rank: int, size: int, options: Any, whole: Future[None]) -> None:
        self.store = dist.distributed_c10d.PrefixStore("gloo/", store)
        self._rank, self._size = rank, size
        self._contexts = len(options._devices)
        self._inner = _Base(self.store, rank, size)
        self._whole = whole
        self._over = ""  # why gloo takes no more calls; empty while it does
        kind = dist.ProcessGroup.BackendType.GLOO
        self._inner._set_default_backend(kind)
        try:
            gloo = _Gloo(self.store, rank, size, options)
        except RuntimeError as error:
            reason = str(error).partition(_ADVICE)[0]
            cause = self._cause() if _has_lost_a_connection(reason) else ""
            raise self._kind()(f"connecting the ranks: {cause or f'gloo: {reason}'}") from error
        finally:
            with suppress(Exception):  # rank 0 holds the store, and may be gone
                self.store.add(_CONNECTED, 1)
        gloo._set_sequence_number_for_group()
        gloo._set_default_timeout(_NO_LIMIT)
        for device in ("cpu", "cuda"):
            self._inner._register_backend(torch.device(device), kind, gloo)
        self._lock = threading.Lock()
        self._ends: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        self._agreed: queue.SimpleQueue[tuple[Work, Call] | None] = queue.SimpleQueue()
        self._begun: queue.SimpleQueue[tuple[Work, Call, Any] | None] = queue.SimpleQueue()
        self._from_any: set[Work] = set()
        whole.add_done_callback(self._is_not_whole)

    @property
    def over(self) -> str:
        """Why gloo takes no more calls; empty while it does."""
        return self._over

    def sequence_number(self) -> int:
        """Return gloo's count of its calls."""
        return int(self._inner._get_sequence_number_for_group())

    # --- collectives

    def carry(self, work: Work, call: Call) -> None:
        """Queue a call on which all ranks have agreed; never waits."""
        with self._lock:
            if not self._threads:
                for name, run in (("gloo", self._call), ("gloo waits", self._wait)):
                    thread = threading.Thread(target=run, name=f"anabranch {name}", daemon=True)
                    self._threads.append(thread)
                    thread.start()
        self._agreed.put((work, call))

    def _call(self) -> None:
        while (item := self._agreed.get()) is not None:
            work, call = item
            try:
                if self._over:
                    raise self._error(work.what)
                begun = call.begin(self._inner)
            except Exception as error:
                work.fail(error)
            else:
                self._begun.put((work, call, begun))
                del begun
            del item, work, call  # so that this thread keeps no tensors until the next call
        self._begun.put(None)

    def _wait(self) -> None:
        while (item := self._begun.get()) is not None:
            work, call, begun = item
            try:
                with call.streaming():
                    begun.wait()
                    work.succeed(call.finish())
            except Exception as error:
                work.fail(self._account(work.what, error))
            del item, work, call, begun

    # --- sends and receives

    def to_and_fro(
        self,
        name: str,
        what: str,
        limit: timedelta,
        tensors: list[torch.Tensor],
        *given: Any,
        **named: Any,
    ) -> Any:
        """Begin to send or receive.

        Args:
            name: the name of gloo's method.
            what: the call in words, for messages.
            limit: the longest wait for its end.
            tensors, given, named: the method's arguments.

        Raises:
            RuntimeError: gloo takes no more calls; says why.
        """
        if self._over:
            raise self._error(what)
        begun = getattr(self._inner, name)(tensors, *given, **named)
        if name != "recv_anysource":
            return ToAndFro(partial(self._await, what, begun), begun, tensors, limit)
        # The end of gloo's connections does not end its wait for a message of any rank.
        work = FromAny(what, begun, self._are_others_gone)
        with self._lock:
            is_over = bool(self._over)  # if gloo has ended meanwhile, `end` has not seen this work
            self._from_any.add(work)
        if is_over:
            work.fail(self._error(what))
        threading.Thread(
            target=self._receive,
            args=(work, begun, tensors, limit),
            name="anabranch receives",
            daemon=True,
        ).start()
        return work

    def _await(self, what: str, begun: Any, limit: timedelta) -> None:
        try:
            begun.wait(limit)
        except RuntimeError as error:
            if _TIMED_OUT in str(error):
                self.end(
                    f"{what}: the timeout of {limit.total_seconds():g} s is over, after which gloo "
                    "has closed its connections"
                )
            raise self._account(what, error) from error

    def _receive(
        self, work: Work, begun: Any, tensors: list[torch.Tensor], limit: timedelta
    ) -> None:
        try:
            self._await(work.what, begun, limit)
        except Exception as error:
            work.fail(error)
        else:
            work.succeed(tensors)
        with self._lock:
            self._from_any.discard(work)

    # --- the end

    def end(self, why: str) -> None:
        """Fail all calls under way and all later ones; never waits.

        Args:
            why: the reason, for the errors here and at ranks that lose their connections to this
                one.
        """
        with self._lock:
            if self._over:
                return
            self._over = (
                f"{why}; this process group makes no further call by gloo: "
                "destroy_process_group(), and begin anew"
            )
            from_any = [*self._from_any]
            self._ends = threading.Thread(
                target=self._disconnect, args=(why,), name="anabranch gloo ends", daemon=True
            )
            self._ends.start()
        for work in from_any:
            work.fail(self._error(work.what))

    def _disconnect(self, why: str) -> None:
        # Otherwise ranks take the reason from the group; the store may be gone with rank 0.
        if not self._whole.done():
            self._tell(why)
        inner = self._inner
        for tag in range(_UNUSED_TAG, _UNUSED_TAG + self._contexts):
            if self._size > 1:
                with suppress(RuntimeError):
                    inner.recv([torch.empty(1)], (self._rank + 1) % self._size, tag).wait(_AT_ONCE)

    def _tell(self, why: str) -> None:
        with suppress(Exception):  # rank 0 holds the store, and may be gone
            self.store.compare_set(_ENDED, "", f"rank {self._rank}: {why}")
            self.store.add(_GONE, 1)

    def _let_others_connect(self) -> None:
        """Wait until all ranks have connected; a rank whose peer closes meanwhile would fail."""
        until_s = time.monotonic() + _CONNECTS_S
        with suppress(Exception):  # rank 0 holds the store, and leaves once all have connected
            while int(self.store.add(_CONNECTED, 0)) < self._size:
                if self._whole.done() or time.monotonic() > until_s:
                    return
                time.sleep(_ASKS_S)

    def _are_others_gone(self) -> bool:
        return int(self.store.add(_GONE, 0)) >= self._size - 1

    def _is_not_whole(self, whole: Future[None]) -> None:
        if not whole.cancelled() and (error := whole.exception()) is not None:
            self.end(str(error))

    def _account(self, what: str, error: Exception) -> Exception:
        """Return the error of a call that gloo has failed.

        If gloo has lost a connection, this ends gloo, and takes the cause from the other ranks.
        """
        reason = str(error).partition(_ADVICE)[0]
        if not _has_lost_a_connection(reason):
            return RuntimeError(f"{what}: gloo: {reason}")
        if not self._over:
            self.end(self._cause() or f"gloo: {reason}")
        return self._error(what)

    def _cause(self) -> str:
        """Return why a connection broke, from the store or the group; empty if neither says."""
        until_s = time.monotonic() + _ACCOUNT_S
        while time.monotonic() < until_s and not self._over:
            with suppress(Exception):  # rank 0 holds the store, and may be gone
                if self.store.check([_ENDED]):
                    return str(self.store.get(_ENDED).decode())
            try:
                return str(self._whole.exception(_ASKS_S))
            except NotYet:
                continue
            except CancelledError:
                break
        return ""

    def _error(self, what: str) -> Exception:
        why = self._over if self._over.startswith(what) else f"{what}: {self._over}"
        return self._kind()(why)

    def _kind(self) -> type[Exception]:
        """Return the class of errors: RunAborted once the group has ended early."""
        is_known = self._whole.done() and not self._whole.cancelled()
        has_group_ended = is_known and isinstance(self._whole.exception(), RunAborted)
        return RunAborted if has_group_ended else RuntimeError

    def close(self) -> None:
        """Destroy gloo, once all agreed calls have ended; tell ranks that wait for this one."""
        self._agreed.put(None)
        for thread in self._threads:
            thread.join()
        with self._lock:
            was_over, self._over = self._over, self._over or "this process group is destroyed"
            ends = self._ends
        if ends is not None:
            ends.join()
        elif not was_over and not self._whole.done():
            self._let_others_connect()
            self._tell("has destroyed its process group")
        self._inner = None


def _has_lost_a_connection(reason: str) -> bool:
    return any(each in reason for each in _LOST)


class ToAndFro(dist.Work):
    """The work of a gloo send or receive; the thread that calls ``wait`` waits for gloo.

    Args:
        wait: waits for the message; takes a limit.
        begun: gloo's work.
        tensors: the message's.
        limit: the default limit.
    """

    def __init__(
        self,
        wait: Callable[[timedelta], None],
        begun: Any,
        tensors: list[torch.Tensor],
        limit: timedelta,
    ) -> None:
        super().__init__()
        self._wait = wait
        self._begun = begun
        self._tensors = tensors
        self._limit = limit
        self._has_ended = False
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return once the message is sent or received.

        Args:
            timeout: the longest wait; zero for the process group's timeout.

        Raises:
            RuntimeError: the timeout is over, or the message failed; then gloo's connections are
                closed.
        """
        if self._error is not None:
            raise self._error
        if not self._has_ended:
            try:
                self._wait(timeout if timeout > timedelta(0) else self._limit)
            except RuntimeError as error:
                self._error = error
                raise
            finally:
                self._has_ended = True
        return True

    def is_completed(self) -> bool:
        """Return whether ``wait`` has returned, or raised."""
        return self._has_ended or bool(self._begun.is_completed())

    def is_success(self) -> bool:
        """Return whether ``wait`` has returned."""
        return self._has_ended and self._error is None

    def exception(self) -> Any:
        """Return the error, or None."""
        return self._error

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self._tensors

    def source_rank(self) -> int:
        """Return the rank that sent the message."""
        return int(self._begun._source_rank())

    _source_rank = source_rank


class FromAny(Work):
    """The work of a receive from any rank; a thread of this module waits for gloo.

    Gloo keeps waiting after all other ranks have closed their connections. So ``wait`` also checks
    for that.

    Args:
        what: the call in words, for messages.
        begun: gloo's work.
        are_others_gone: returns whether no other rank can send any more.
    """

    def __init__(self, what: str, begun: Any, are_others_gone: Callable[[], bool]) -> None:
        super().__init__(what)
        self._begun = begun
        self._are_others_gone = are_others_gone

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """See :meth:`Work.wait`."""
        if timeout > timedelta(0):
            return super().wait(timeout)
        while not self.ends_within(_LOOKS_S):
            if self._are_others_gone():
                gone = "all other ranks have destroyed this process group"
                self.fail(RuntimeError(f"{self.what}: {gone}"))
        return super().wait()

    def source_rank(self) -> int:
        """Return the rank that sent the message."""
        return int(self._begun._source_rank())

    _source_rank = source_rank
