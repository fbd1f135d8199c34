"""Ranks of one site that share its part in the group."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Listener
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
import torch

import anabranch
from anabranch import ExchangeError, RunAborted
from anabranch.torch._sharing import Part, Shared
from tests.threads import at_each


class Sites:
    """Two sites of two ranks each, in this process: one rank has the group, the other a part."""

    def __init__(self, groups: tuple[anabranch.Group, ...]) -> None:
        self.groups = groups
        self.shared = [Shared(group, "secret") for group in groups]
        self.parts = self.at_each(lambda site: Part(self.shared[site].address, "secret", 1))
        self.firsts = self.at_each(lambda site: self.shared[site].channel(0))

    def at_each(self, call: Callable[[int], Any]) -> list[Any]:
        return at_each(self.groups, lambda group: call(self.groups.index(group)))


@pytest.fixture
def sites() -> Iterator[Sites]:
    with anabranch.local(2) as groups:
        made = Sites(groups)
        yield made
        made.at_each(lambda site: made.parts[site].close())
        made.at_each(lambda site: made.shared[site].close())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_exchanges_in_its_own_order(sites, dtype):
    def calls(site: int) -> list[list[float]]:
        first, part = sites.firsts[site], sites.parts[site]
        mine = [torch.full((3, 2), site + add).to(dtype).t() for add in (0, 10, 20)]
        begin = [
            lambda: part.all_reduce([mine[0], mine[1]], op="sum", async_op=True),
            lambda: first.all_reduce(mine[2], op="mean", async_op=True),
        ]
        handles = [each() for each in (begin if site else reversed(begin))]
        for handle in handles:
            handle.wait()
        return [[float(each[0, 0]), float(each[1, 2])] for each in mine]

    assert sites.at_each(calls) == [[[1.0, 1.0], [21.0, 21.0], [20.5, 20.5]]] * 2


def test_a_part_broadcasts_and_gathers(sites):
    names = [group.site for group in sites.groups]

    def calls(site: int) -> tuple[list[float], dict[str, bytes]]:
        tensor = torch.full((4,), float(site))
        sites.parts[site].broadcast(tensor, root=names[1], async_op=True).wait()
        return tensor.tolist(), sites.parts[site].begin_gather(bytes([site])).result()

    assert sites.at_each(calls) == [([1.0] * 4, {names[0]: b"\0", names[1]: b"\1"})] * 2


def test_memory_of_calls_is_used_again_and_has_no_name_once_both_have_it(sites):
    def calls(site: int) -> list[str]:
        part = sites.parts[site]
        for elements in (1000, 10, 1000):
            part.all_reduce(torch.ones(elements), op="sum", async_op=True).wait()
        return [str(each.path) for each in part._memory]

    paths = sites.at_each(calls)
    assert [len(each) for each in paths] == [1, 1]
    assert not any(os.path.exists(path) for each in paths for path in each)


def test_what_is_wrong_with_a_call_is_told_to_the_rank_that_made_it(sites):
    with pytest.raises(RunAborted, match="ValueError: root 'nowhere' is no member"):
        sites.parts[0].broadcast(torch.ones(3), root="nowhere", async_op=True).wait()
    with pytest.raises(ValueError, match="several types"):
        sites.parts[0].all_reduce(
            [torch.ones(3), torch.ones(3, dtype=torch.float16)], op="sum", async_op=True
        )


def test_a_rank_that_does_not_know_the_token_is_refused_and_others_go_on(sites):
    with pytest.raises(Exception, match="digest sent was rejected"):
        Part(sites.shared[0].address, "guess", 1)
    tensors = sites.at_each(lambda site: torch.ones(3))
    sites.at_each(
        lambda site: sites.parts[site].all_reduce(tensors[site], op="sum", async_op=True).wait()
    )
    assert tensors[0].tolist() == [2.0] * 3


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ValueError, match="machine its own site"):
        Part("\0anabranch-nowhere", "secret", 0)


def test_a_rank_that_is_gone_ends_the_group():
    with suppress(RunAborted), anabranch.local(2) as groups:
        sites = Sites(groups)
        gone = socket.socket(fileno=os.dup(sites.parts[0]._connection.fileno()))
        with gone:
            gone.shutdown(socket.SHUT_RDWR)
        for part, why in zip(sites.parts, ("joined for this site", "of this site"), strict=True):
            with pytest.raises(RunAborted, match=f"{why}.* is gone"):
                part.watch_whole().result(30)
        with pytest.raises(RunAborted, match=r"rank \d+, of this site, is gone"):
            sites.firsts[1].barrier()
        with pytest.raises(RunAborted, match=r"rank \d+, of this site, is gone"):
            sites.parts[1].begin_gather(b"").result()
        with pytest.raises(RunAborted, match="the rank that joined for this site is gone"):
            sites.parts[0].begin_gather(b"").result()
        for part in sites.parts:
            part.close()
        for shared in sites.shared:
            shared.close()


def test_a_rank_hears_of_a_site_that_is_lost_while_the_others_go_on():
    with anabranch.local(3) as groups:
        sites = Sites(groups)
        groups[2].__exit__(KeyError, KeyError("no such file"), None)
        for part in sites.parts[:2]:
            error = part.watch_whole().exception(30)
            assert isinstance(error, ExchangeError)
            assert str(error).endswith("failed: KeyError: 'no such file'")
        for site in range(3):
            sites.parts[site].close()
        sites.shared[2].close()
        sites.at_each(lambda site: sites.shared[site].close())


def test_a_part_that_sends_much_reads_on_meanwhile():
    """The rank that joined may read nothing until its answers have been read."""
    much, address = bytes(4 << 20), f"\0anabranch-{secrets.token_hex(8)}"

    def serve() -> None:
        with listener.accept() as connection:
            connection.recv_bytes()  # "open"
            connection.send_bytes(msgspec.msgpack.encode([0, None, None]))
            for _ in range(3):  # "whole" and the small values
                connection.recv_bytes()
            for number in (2, 3):
                connection.send_bytes(msgspec.msgpack.encode([number, {"b": much}, None]))
            number, *_ = msgspec.msgpack.decode(connection.recv_bytes())
            connection.send_bytes(msgspec.msgpack.encode([number, {}, None]))
            connection.recv_bytes()  # it leaves

    def call() -> None:
        found.put(part.begin_gather(much).result())

    found: SimpleQueue[dict[str, bytes]] = SimpleQueue()
    with Listener(address, "AF_UNIX", authkey=b"secret") as listener:
        threading.Thread(target=serve, daemon=True).start()
        part = Part(address, "secret", 0)
        small = [part.begin_gather(b""), part.begin_gather(b"")]
        threading.Thread(target=call, daemon=True).start()
        assert found.get(timeout=20.0) == {}
        assert [each.result(20.0) for each in small] == [{"b": much}] * 2
        part.close()
