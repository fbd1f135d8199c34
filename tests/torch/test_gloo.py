"""The gloo group beside the group: two ranks of it in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from anabranch.net.errors import RunAborted
from anabranch.site.round import ExchangeError
from anabranch.torch import _gloo
from anabranch.torch._gloo import Gloo, options_of
from anabranch.torch._gloo_calls import COLLECTIVES, Call
from anabranch.torch._works import Work
from tests.every import every

LIMIT = timedelta(seconds=60)
SHORT = timedelta(milliseconds=20)


class Ranks:
    """Two ranks, each with a gloo group, and what tells that a rank is lost."""

    def __init__(self) -> None:
        store = dist.HashStore()
        self.whole: list[Future[None]] = [Future(), Future()]
        with ThreadPoolExecutor() as pool:  # each waits for the other
            self.gloo = list(pool.map(partial(self._make, store), range(2)))

    def _make(self, store: Any, rank: int) -> Gloo:
        return Gloo(store, rank, 2, options_of(store, LIMIT), self.whole[rank])

    def begin(self, rank: int, name: str, *given: Any, **named: Any) -> Work:
        call = Call(name, given, named)
        work = Work(call.what)
        self.gloo[rank].carry(work, call)
        return work

    def recv(self, rank: int, limit: timedelta = LIMIT, name: str = "recv") -> Any:
        given = ([torch.zeros(3)], 1 - rank, 7) if name == "recv" else ([torch.zeros(3)], 7)
        return self.gloo[rank].to_and_fro(name, "recv", limit, *given)

    def both(self, name: str, *given: Callable[[int], Any]) -> None:
        works = [self.begin(rank, name, *(each(rank) for each in given)) for rank in range(2)]
        for work in works:
            work.wait(LIMIT)

    def close(self) -> None:
        for each in self.gloo:
            each.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    try:
        yield made
    finally:
        made.close()


def threads_of_gloo() -> int:
    """Return how many threads of gloo's, and of ours that call it, there are."""
    tasks = Path("/proc/self/task")
    names = [(each / "comm").read_text() for each in tasks.iterdir() if each.exists()]
    ours = [each for each in threading.enumerate() if each.name.startswith("anabranch gloo")]
    return sum("gloo" in name for name in names) + len(ours)


def waits(work: Any) -> str:
    """Return the error by which a work ends."""
    with pytest.raises(RuntimeError) as raised:
        work.wait(LIMIT) if isinstance(work, Work) else work.wait()
    return str(raised.value)


SUMS = dist.AllreduceOptions()


def test_a_rank_closes_gloo_once_all_ranks_have_connected(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a slow rank finds its connection closed, though nothing has failed."""
    goes_on, made = threading.Event(), _gloo._Gloo

    def connect(store: Any, rank: int, *given: Any) -> Any:
        found = made(store, rank, *given)
        if rank == 0:
            goes_on.wait(LIMIT.total_seconds())
        return found

    store, whole = dist.HashStore(), [Future[None](), Future[None]()]
    options = [options_of(store, LIMIT) for _ in range(2)]
    monkeypatch.setattr(_gloo, "_Gloo", connect)

    def come_and_go(rank: int) -> None:
        Gloo(store, rank, 2, options[rank], whole[rank]).close()

    with ThreadPoolExecutor() as pool:
        slow, fast = (pool.submit(come_and_go, rank) for rank in range(2))
        with pytest.raises(TimeoutError):
            fast.result(0.5)
        goes_on.set()
        assert (slow.result(60), fast.result(60)) == (None, None)


def test_closing_ends_all_threads_of_gloo():
    before = threads_of_gloo()
    ranks = Ranks()
    ranks.both("allreduce", lambda rank: [torch.full((3,), float(rank))], lambda _: SUMS)
    assert threads_of_gloo() > before
    ranks.close()
    assert threads_of_gloo() == before


@pytest.mark.parametrize("name", ["allreduce", "recv", "recv_anysource"])
def test_what_is_under_way_ends_with_gloo_and_the_other_rank_is_told_why(ranks, name):
    if name == "allreduce":
        begun = ranks.begin(0, "allreduce", [torch.ones(1000)], SUMS)
    else:
        begun = ranks.recv(0, name=name)
    others = ranks.recv(1)
    with ThreadPoolExecutor() as pool:
        told = pool.submit(waits, begun)
        ranks.gloo[0].end("the reason")
        assert "the reason" in told.result(60)
    assert "rank 0: the reason" in waits(others)
    later = ranks.begin(0, "allreduce", [torch.ones(3)], SUMS)
    assert "the reason; this process group makes no further call by gloo" in waits(later)
    with pytest.raises(RuntimeError, match="the reason"):
        ranks.recv(0)


def test_gloo_ends_with_the_group_by_its_reason(ranks):
    begun = ranks.begin(0, "allreduce", [torch.ones(1000)], SUMS)
    ranks.whole[0].set_exception(RunAborted("site 1 died"))
    with pytest.raises(RunAborted, match="site 1 died"):
        begun.wait(LIMIT)


@pytest.mark.parametrize("name", ["allreduce", "recv", "recv_anysource"])
def test_gloo_ends_once_a_rank_is_lost_also_where_the_group_goes_on(ranks, name):
    """As where the lost rank's machine is gone, so that gloo's own connections say nothing."""
    if name == "allreduce":
        begun = ranks.begin(0, "allreduce", [torch.ones(1000)], SUMS)
    else:
        begun = ranks.recv(0, name=name)
    ranks.whole[0].set_exception(ExchangeError("site 1 died"))
    assert "site 1 died; this process group makes no further call by gloo" in waits(begun)


def test_a_receive_of_any_rank_that_begins_as_gloo_ends_is_told_why(ranks):
    gloo, inner = ranks.gloo[0], ranks.gloo[0]._inner

    class Ends:
        def recv_anysource(self, *given: Any) -> Any:
            begun = inner.recv_anysource(*given)
            gloo.end("rank 1 is lost")  # as the group's thread calls it
            return begun

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    gloo._inner = Ends()
    work = ranks.recv(0, timedelta(seconds=20), "recv_anysource")
    assert work.ends_within(5.0)
    assert "rank 1 is lost" in waits(work)


def test_a_receive_that_takes_too_long_says_that_gloo_is_over_and_both_ranks_hear_it(ranks):
    waiting = ranks.recv(1)
    said = waits(ranks.recv(0, limit=SHORT))
    assert "recv: the timeout of 0.02 s is over, after which gloo has closed" in said
    assert "the timeout of 0.02 s is over" in ranks.gloo[0].over
    assert "rank 0: recv: the timeout of 0.02 s is over" in waits(waiting)


def test_a_rank_that_destroys_its_group_ends_the_wait_of_another(ranks):
    waiting = ranks.recv(0)
    ranks.gloo[1].close()
    assert "rank 1: has destroyed its process group" in waits(waiting)


@pytest.mark.parametrize("name", ["recv", "recv_anysource"])
def test_a_message_comes_with_its_rank(ranks, name):
    work = ranks.recv(0, name=name)
    sent = ranks.gloo[1].to_and_fro("send", "send", LIMIT, [torch.ones(3)], 0, 7)
    for each in (work, sent):
        each.wait()
        assert each.is_completed()
        assert each.is_success()
    assert work.result()[0].tolist() == [1, 1, 1]
    assert work._source_rank() == work.source_rank() == 1


def test_a_group_closes_while_a_message_of_any_rank_is_waited_for():
    ranks = Ranks()
    ranks.recv(0, name="recv_anysource")
    ranks.close()


def test_calls_are_made_in_the_order_in_which_they_are_agreed_on(ranks):
    tensors = [[torch.full((9,), float(rank + call)) for call in range(50)] for rank in range(2)]
    works = [
        [ranks.begin(rank, "allreduce", [each], SUMS) for each in tensors[rank]]
        for rank in range(2)
    ]
    for work in reversed([*works[0], *works[1]]):
        work.wait(LIMIT)
    assert [each[0].item() for each in tensors[0]] == [2 * call + 1 for call in range(50)]


DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
]


def bits(tensor: torch.Tensor) -> list[int]:
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return flat.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("is_strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_what_only_moves_data_moves_any_type_bit_for_bit(ranks, dtype, is_strided):
    def made(rank: int, rows: int = 4) -> torch.Tensor:
        raw = torch.arange(rows * 6 * dtype.itemsize, dtype=torch.uint8) + 50 * rank
        if dtype == torch.bool:
            raw = raw % 2
        tensor = raw.view(dtype).view(rows, 6)
        if is_strided:
            twice = torch.empty(6, 2 * rows, dtype=dtype)
            twice.t()[::2].copy_(tensor)
            return twice.t()[::2]
        return tensor

    def room(rows: int = 4) -> torch.Tensor:
        return (
            torch.zeros(6, rows, dtype=dtype).t()
            if is_strided
            else torch.zeros(rows, 6, dtype=dtype)
        )

    def check(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        assert [bits(each) for each in found] == [bits(each) for each in wanted]

    inputs = [made(0), made(1)]
    outputs = [[room(), room()] for _ in range(2)]
    ranks.both("allgather", lambda rank: [outputs[rank]], lambda rank: [inputs[rank]])
    for each in outputs:
        check(each, inputs)
    wholes = [room(8), room(8)]
    ranks.both("_allgather_base", lambda rank: wholes[rank], lambda rank: inputs[rank])
    for whole in wholes:
        check([whole], [torch.cat(inputs)])
    options = dist.GatherOptions()
    options.rootRank = 1
    outputs = [[room(), room()] for _ in range(2)]
    ranks.both(
        "gather",
        lambda rank: [outputs[rank]] if rank == 1 else [],
        lambda rank: [inputs[rank]],
        lambda _: options,
    )
    check(outputs[1], inputs)
    scattered = dist.ScatterOptions()
    scattered.rootRank = 0
    parts = [room(), room()]
    ranks.both(
        "scatter",
        lambda rank: [parts[rank]],
        lambda rank: [inputs] if rank == 0 else [],
        lambda _: scattered,
    )
    check(parts, inputs)
    swapped = [room(4), room(4)]
    ranks.both(
        "alltoall_base",
        lambda rank: swapped[rank],
        lambda rank: inputs[rank],
        lambda rank: [1, 3] if rank == 0 else [3, 1],
        lambda rank: [1, 3] if rank == 0 else [3, 1],
        lambda _: dist.AllToAllOptions(),
    )
    check(
        swapped,
        [torch.cat([inputs[0][:1], inputs[1][:3]]), torch.cat([inputs[0][1:], inputs[1][3:]])],
    )
    got = [room().contiguous()]
    sent = ranks.gloo[0].to_and_fro("send", "send", LIMIT, [inputs[0].contiguous()], 1, 3)
    ranks.gloo[1].to_and_fro("recv", "recv", LIMIT, got, 0, 3).wait()
    sent.wait()
    check(got, inputs[:1])


@pytest.mark.parametrize("elements", [0, 1, 100_000])
def test_any_number_of_elements_is_gathered(ranks, elements):
    outputs = [[torch.zeros(elements, dtype=torch.int16) for _ in range(2)] for _ in range(2)]
    given = [torch.full((elements,), rank + 1, dtype=torch.int16) for rank in range(2)]
    ranks.both("allgather", lambda rank: [outputs[rank]], lambda rank: [given[rank]])
    assert every(torch.equal(*pair) for each in outputs for pair in zip(each, given, strict=True))


@pytest.mark.parametrize("is_strided", [False, True])
def test_results_come_into_tensors_of_inference_mode_and_those_that_require_a_gradient(
    ranks, is_strided
):
    def room() -> torch.Tensor:
        return torch.zeros(6, 4).t() if is_strided else torch.zeros(4, 6)

    with torch.inference_mode():
        outputs = [[room(), room()] for _ in range(2)]
        given = [torch.full((4, 6), rank + 1.0) for rank in range(2)]
    ranks.both("allgather", lambda rank: [outputs[rank]], lambda rank: [given[rank]])
    assert [each[0, 0].item() for each in outputs[0]] == [1, 2]
    leaves = [[room().requires_grad_() for _ in range(2)] for _ in range(2)]
    ranks.both("allgather", lambda rank: [leaves[rank]], lambda rank: [given[rank]])
    assert [each[0, 0].item() for each in leaves[1]] == [1, 2]


def test_a_call_that_gloo_refuses_leaves_gloo_as_it_is(ranks):
    def tensors(kind: torch.dtype) -> Callable[[int], list[torch.Tensor]]:
        return lambda _: [torch.ones(3, dtype=kind)]

    for rank in range(2):
        refused = waits(ranks.begin(rank, "allreduce", tensors(torch.int16)(rank), SUMS))
        assert "Invalid scalar type" in refused
    ranks.both("allreduce", tensors(torch.float64), lambda _: SUMS)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["allreduce", "allreduce_coalesced", "reduce"])
def test_a_mean_of_integers_is_refused(name, dtype):
    options = dist.ReduceOptions() if name == "reduce" else dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    with pytest.raises(ValueError, match=r"reduce by AVG of \w+, whose mean has a fraction"):
        Call(name, ([torch.ones(3, dtype=dtype)], options), {})


def test_a_call_in_words_has_all_that_ranks_must_agree_on():
    options = dist.ReduceOptions()
    options.reduceOp, options.rootRank = dist.ReduceOp.MIN, 1
    assert (
        Call("reduce", ([torch.zeros(3).double()], options), {}).what
        == "reduce of 3 elements of float64 by MIN, root 1"
    )
    many = [torch.zeros(each) for each in range(5)]
    of_many = Call("reduce_scatter", ([many[0]], [many], dist.ReduceScatterOptions()), {}).what
    assert of_many.startswith("reduce_scatter of 5 tensors of float32, 10 elements in all (")
    others = [torch.zeros(each) for each in (1, 0, 2, 3, 4)]
    assert Call("reduce_scatter", ([many[0]], [others]), {}).what != of_many.removesuffix(" by SUM")
    x = torch.zeros(4, 2)
    assert (
        Call("alltoall_base", (x, x, [], []), {}).what
        == "all_to_all_single of 8 elements of float32"
    )
    uneven = Call("alltoall_base", (x, x, [1, 3], [3, 1]), {}).what
    assert uneven == "all_to_all_single of float32, of sizes that are given"


def test_every_collective_has_its_words():
    base = {name for name in COLLECTIVES if hasattr(dist.ProcessGroup, name)}
    assert base >= {"allreduce", "_allgather_base", "alltoall_base", "reduce_scatter"}


def _loses_a_connection(*_: Any) -> None:
    """Fail as gloo does while a rank dies that it connects to."""
    raise RuntimeError(
        "Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:553] Connection closed by "
        "peer [::1]:22162. This is typically caused by a remote worker crashing."
    )


@pytest.mark.parametrize("error", [RunAborted, ExchangeError])
def test_a_rank_that_dies_while_gloo_connects_is_named(monkeypatch, error):
    store, whole = dist.HashStore(), Future()
    options = options_of(store, LIMIT)
    monkeypatch.setattr("anabranch.torch._gloo._Gloo", _loses_a_connection)
    told = threading.Timer(0.3, whole.set_exception, [error("site 1 (rank1) died")])
    told.start()
    kind = RunAborted if error is RunAborted else RuntimeError
    with pytest.raises(kind, match=r"^connecting the ranks: site 1 \(rank1\) died$"):
        Gloo(store, 0, 2, options, whole)
    told.join()
