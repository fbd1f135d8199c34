"""Several ranks of one site share its membership in the group; each exchanges its own shard.

Under HSDP every rank of a site holds a shard, and averages it with the ranks that hold the same
shard at other sites. One site is one member of the group. So its lanes carry the shards of all its
ranks, and its measurements cover all its traffic.

Theory of operation
-------------------

The first rank of a site joins the group, and serves the site's other ranks over a socket::

    rank 1 of the site                       rank 0 of the site, which joined
    ------------------                       --------------------------------
    Part    -- [number, channel, call] -->   _Rank, a thread for each other rank
            <-- [number, value, error] --      calls the Group of that channel
    _Memory <===== same file, mapped ====>   _Memory    tensors are copied by rank 1 alone

- **Channels.** Each process group has a channel, a subgroup of all sites. So ranks of one site may
  call in any order among each other. All sites must make channels in one order, so ``channel``
  makes every lower number first.
- **Memory.** A rank takes a free block, or makes one, and copies its tensors in. The exchange runs
  on the block. ``wait`` copies the result out and frees the block for the next call. Rank 0 unlinks
  the file as soon as it has mapped it, so a killed process leaves no file behind.
- **End.** A rank that is done sends None, and its thread in rank 0 ends. ``Shared.close`` waits for
  all those threads, and then leaves the group. If a connection breaks without a None, the rank is
  dead: the site leaves the group with an error, since later exchanges would lack a shard. If rank 0
  dies, each ``Part`` fails its pending and later calls with ``RunAborted``.

Messages are msgpack. Every process of the machine can open the socket, so a rank authenticates with
the group's token.

What must never happen:

- *A block is reused while an exchange may write it.* A block whose call failed is not freed.
- *A rank's thread waits for an exchange.* It would hold up that rank's next call. Handles answer
  by ``on_done``.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import msgspec
import torch

from anabranch.group import Group
from anabranch.group.writing import overwrite
from anabranch.net.errors import RunAborted
from anabranch.site.round import ExchangeError, RunEnded

_SHARED = Path("/dev/shm")
_DTYPES = {str(each): each for each in (torch.float32, torch.float16, torch.bfloat16)}


class _Memory:
    """A block of shared memory: a file that two ranks map."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size_bytes)
        self.size_bytes = size_bytes

    @classmethod
    def make(cls, size_bytes: int) -> _Memory:
        """Make a block in a new file."""
        handle, path = tempfile.mkstemp(prefix="anabranch-", dir=_SHARED)
        os.ftruncate(handle, size_bytes)
        os.close(handle)
        return cls(Path(path), size_bytes)

    def tensor(self, dtype: torch.dtype, elements: int) -> torch.Tensor:
        """Return the first elements of the block."""
        return torch.frombuffer(self._map, dtype=dtype, count=elements)


class Shared:
    """A site's membership, at the rank that joined; the site's other ranks connect to ``address``.

    Args:
        group: the group of all sites; this leaves it after the last rank of this site.
        token: the group's secret, with which ranks authenticate.
    """

    def __init__(self, group: Group, token: str) -> None:
        self.group = group
        self._channels: list[Group] = []
        self._makes = threading.Lock()  # making a channel waits for all sites
        self._lock = threading.Lock()
        self._served: list[threading.Thread] = []
        # An abstract socket: no file stays behind if this process is killed.
        self.address = f"\0anabranch-{secrets.token_hex(8)}"
        self._listener = Listener(self.address, "AF_UNIX", authkey=token.encode())
        self._is_over = False
        self._accepts = threading.Thread(target=self._accept, name="anabranch ranks", daemon=True)
        self._accepts.start()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                connection = self._listener.accept()
            except Exception:  # a process without the token, or the end
                continue
            thread = threading.Thread(
                target=_Rank(self, connection).run, name="anabranch rank", daemon=True
            )
            with self._lock:
                self._served.append(thread)
            thread.start()

    def channel(self, number: int) -> Group:
        """Return a process group's channel, a subgroup of all sites.

        Sites make channels in the order of their numbers, whichever is requested first.
        """
        with self._makes:
            while len(self._channels) <= number:
                name = f"process group {len(self._channels)}"
                self._channels.append(self.group.subgroup(self.group.sites, name=name))
            return self._channels[number]

    def fail(self, error: Exception) -> None:
        """Leave the group with an error: a rank of this site is gone, and its shard with it."""
        self.group.__exit__(type(error), error, None)

    def close(self) -> None:
        """Wait until the site's other ranks have left, and leave."""
        with self._lock:
            served = [*self._served]
        for thread in served:
            thread.join()
        self._is_over = True
        with suppress(OSError, AuthenticationError):  # wakes accept(), which has no timeout
            Client(self.address, "AF_UNIX").close()
        # Bounded, since a process that connects and sends nothing holds accept() up.
        self._accepts.join(1.0)
        self._listener.close()
        self.group.close()


class _Rank:
    """Serves one other rank of the site, in a thread."""

    def __init__(self, shared: Shared, connection: Connection) -> None:
        self._shared = shared
        self._connection = connection
        self._lock = threading.Lock()
        self._memory: dict[str, _Memory] = {}
        self._name = "another rank"

    def run(self) -> None:
        """Make that rank's calls, in its order, until it leaves."""
        with self._connection:
            while True:
                try:
                    said = msgspec.msgpack.decode(self._connection.recv_bytes())
                except (EOFError, OSError):
                    self._shared.fail(RunAborted(f"{self._name}, of this site, is gone"))
                    return
                if said is None:
                    return
                number, channel, what, arguments = said
                try:
                    group = self._shared.channel(channel)
                    getattr(self, f"_{what}")(partial(self._answer, number), group, *arguments)
                except Exception as error:
                    self._answer(number, None, error)

    def _answer(self, number: int, value: Any, error: BaseException | None) -> None:
        said = None if error is None else [type(error).__name__, str(error)]
        if isinstance(error, RunEnded):
            said = ["RunEnded", error.reason]
        with self._lock:
            try:
                self._connection.send_bytes(msgspec.msgpack.encode([number, value, said]))
            except OSError:
                return  # the rank is gone; `run` handles that

    def _tensor(self, path: str, size_bytes: int, dtype: str, elements: int) -> torch.Tensor:
        memory = self._memory.get(path)
        if memory is None:
            memory = self._memory[path] = _Memory(Path(path), size_bytes)
            memory.path.unlink()  # both have mapped it: a killed process leaves no file
        return memory.tensor(_DTYPES[dtype], elements)

    def _open(self, answer: Any, group: Group, name: str) -> None:
        self._name = name
        answer(None, None)

    def _all_reduce(self, answer: Any, group: Group, how: dict[str, Any], *place: Any) -> None:
        handle = group.all_reduce(self._tensor(*place), **how, async_op=True)
        handle.on_done(lambda done: answer(None, _error(done.wait)))

    def _broadcast(self, answer: Any, group: Group, root: str, *place: Any) -> None:
        handle = group.broadcast(self._tensor(*place), root=root, async_op=True)
        handle.on_done(lambda done: answer(None, _error(done.wait)))

    def _fail(self, answer: Any, group: Group, what: str) -> None:
        self._shared.fail(RunAborted(f"{self._name}, of this site: {what}"))
        answer(None, None)

    def _whole(self, answer: Any, group: Group) -> None:
        def has_ended(done: Future[None]) -> None:
            if not done.cancelled():
                answer(None, done.exception())

        group.watch_whole().add_done_callback(has_ended)

    def _gather(self, answer: Any, group: Group, data: bytes, what: str) -> None:
        def gathered(done: Future[dict[str, bytes]]) -> None:
            error = _error(done.result)
            answer(None if error else done.result(), error)

        group.begin_gather(data, what).add_done_callback(gathered)


def _error(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


class Part:
    """A rank's access to its site's membership through the rank that joined; a ``Group``'s calls.

    Args:
        address: the socket of the rank that joined.
        token: the group's secret.
        channel: the number of this rank's process group.

    Raises:
        ValueError: the address is of another machine.
        RunAborted: the group has ended.
    """

    def __init__(self, address: str, token: str, channel: int) -> None:
        try:
            connection = Client(address, "AF_UNIX", authkey=token.encode())
        except ConnectionRefusedError:
            raise ValueError(
                "the rank that joined for this site is not on this machine, or gone; give each "
                "machine its own site"
            ) from None
        self._connection = connection
        self._channel = channel
        self._lock = threading.Lock()
        self._sends = threading.Lock()  # not `_lock`, for which reading would wait during a send
        self._numbers = itertools.count()
        self._under_way: dict[int, Future[Any]] = {}
        self._memory: list[_Memory] = []  # free blocks
        self._is_over = False
        self._reads = threading.Thread(target=self._read, name="anabranch site", daemon=True)
        self._reads.start()
        self._call("open", f"rank {os.environ.get('RANK', os.getpid())}").result()
        self._whole: Future[None] = self._call("whole")

    def _read(self) -> None:
        while True:
            try:
                number, value, error = msgspec.msgpack.decode(self._connection.recv_bytes())
            except (EOFError, OSError):
                break
            with self._lock:
                future = self._under_way.pop(number)
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(_error_of(*error))
        with self._lock:
            self._is_over, under_way = True, [*self._under_way.values()]
        for future in under_way:
            future.set_exception(RunAborted("the rank that joined for this site is gone"))

    def _call(self, what: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                raise RunAborted("the rank that joined for this site is gone")
            number = next(self._numbers)
            self._under_way[number] = future
        self._send([number, self._channel, what, arguments])
        return future

    def _send(self, said: list[Any] | None) -> None:
        with self._sends, suppress(OSError):  # the rank that joined is gone, as `_read` finds
            self._connection.send_bytes(msgspec.msgpack.encode(said))

    def _exchange(self, what: str, given: Any, argument: Any) -> _Handle:
        tensors = [given] if isinstance(given, torch.Tensor) else list(given)
        dtype = tensors[0].dtype
        if any(each.dtype != dtype for each in tensors):
            raise ValueError("tensors of several types; exchange each type in a separate call")
        elements = sum(each.numel() for each in tensors)
        memory = self._take(elements * dtype.itemsize)
        whole = memory.tensor(dtype, elements)
        try:
            _copy(tensors, whole, out=False)
        except Exception:
            self._put(memory, is_mapped=False)
            raise
        place = str(memory.path), memory.size_bytes, str(dtype), elements
        return _Handle(
            self._call(what, argument, *place), tensors, whole, partial(self._put, memory)
        )

    def _take(self, size_bytes: int) -> _Memory:
        with self._lock:
            fits = [each for each in self._memory if each.size_bytes >= size_bytes]
            if fits:
                found = min(fits, key=lambda each: each.size_bytes)
                self._memory.remove(found)
                return found
        return _Memory.make(size_bytes)

    def _put(self, memory: _Memory, is_mapped: bool) -> None:
        """Free a block for the next call; or drop it, if the other rank has not mapped it."""
        memory.path.unlink(missing_ok=True)
        if is_mapped:
            with self._lock:
                self._memory.append(memory)

    def all_reduce(
        self,
        tensors: Any,
        *,
        op: str = "mean",
        weight: float = 1.0,
        wire: str | None = None,
        async_op: bool,
    ) -> _Handle:
        """See :meth:`anabranch.Group.all_reduce`."""
        how = {"op": op, "weight": float(weight), "wire": wire}
        return self._exchange("all_reduce", tensors, how)

    def broadcast(self, tensors: Any, *, root: str, async_op: bool) -> _Handle:
        """See :meth:`anabranch.Group.broadcast`."""
        return self._exchange("broadcast", tensors, root)

    def watch_whole(self) -> Future[None]:
        """See :meth:`anabranch.Group.watch_whole`."""
        return self._whole

    def begin_gather(self, data: bytes, what: str = "") -> Future[dict[str, bytes]]:
        """See :meth:`anabranch.Group.begin_gather`."""
        return self._call("gather", data, what)

    def fail(self, error: Exception) -> None:
        """End the group at all sites: this rank's call took longer than its timeout."""
        with suppress(RunAborted):  # the group has ended already
            self._call("fail", str(error))

    def close(self) -> None:
        """Leave, once this rank's calls have ended."""
        with self._lock:
            under_way = [each for each in self._under_way.values() if each is not self._whole]
        for future in under_way:
            future.exception()
        self._send(None)
        self._reads.join()
        self._connection.close()


def _error_of(kind: str, text: str) -> Exception:
    """Return an error that the rank that joined has raised."""
    if kind == "ExchangeError":
        return ExchangeError(text)
    if kind == "RunEnded":
        return RunEnded(text)
    return RunAborted(text if kind == "RunAborted" else f"{kind}: {text}")


class _Handle:
    """An exchange that the rank that joined makes for this one."""

    def __init__(
        self,
        future: Future[Any],
        tensors: list[torch.Tensor],
        whole: torch.Tensor,
        put: Callable[[bool], None],
    ) -> None:
        self._future = future
        self._tensors = tensors
        self._whole = whole
        self._put = put
        self._finished = False

    def wait(self) -> None:
        error = self._future.exception()
        if not self._finished:
            self._finished = True
            if error is None:
                _copy(self._tensors, self._whole, out=True)
            self._put(error is None)
        if error is not None:
            raise error

    def on_done(self, call: Callable[[Any], None]) -> None:
        self._future.add_done_callback(lambda _: call(self))


def _copy(tensors: list[torch.Tensor], whole: torch.Tensor, out: bool) -> None:
    start = 0
    for each in tensors:
        part = whole[start : start + each.numel()].view(each.shape)
        start += each.numel()
        if out:
            overwrite(each, part)
        else:
            part.copy_(each.detach())
