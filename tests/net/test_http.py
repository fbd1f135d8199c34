"""A page over HTTP: it is for all who ask, and no caller holds it up."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

from anabranch.net import http
from anabranch.net.errors import LinkError
from anabranch.net.http import serving_page

from .jumping import run_jumping

HERE = "127.0.0.1", 0
TEXT = "text/plain"


def test_the_page_is_made_for_each_caller_and_other_paths_are_not_found() -> None:
    pages = iter("12")

    async def play() -> None:
        async with serving_page(HERE, "/metrics", TEXT, lambda: next(pages)) as (host, port):

            def get(path: str) -> str:
                with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as found:
                    assert found.headers["Content-Type"] == TEXT
                    return str(found.read().decode())

            assert await asyncio.to_thread(get, "/metrics") == "1"
            assert await asyncio.to_thread(get, "/metrics?x=1") == "2"
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(get, "/")

    asyncio.run(play())


@pytest.mark.parametrize("said", [b"", b"GET /metrics", b"\x00" * 20_000, b"AB\x0b\r\n\r\n"])
def test_a_caller_that_says_nothing_or_nonsense_is_let_go(said: bytes) -> None:
    async def play() -> None:
        async with serving_page(HERE, "/metrics", TEXT, lambda: "secret") as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(said)
            with suppress(ConnectionError):
                told = await asyncio.wait_for(reader.read(), 2 * http.DEADLINE_S)
                assert b"secret" not in told
            writer.close()

    run_jumping(play())


async def _turns() -> None:
    """Let the server, in the same loop, see who has come and gone."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_of_too_many_callers_the_latest_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_CALLERS", 2)

    async def play() -> None:
        async with serving_page(HERE, "/metrics", TEXT, lambda: "1") as address:
            idle = [await asyncio.open_connection(*address) for _ in range(2)]
            await _turns()
            reader, writer = await asyncio.open_connection(*address)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 5.0)
            for _, each in [*idle, (reader, writer)]:
                each.close()
            await _turns()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 5.0)).endswith(b"\r\n\r\n1")
            writer.close()

    asyncio.run(play())


def test_an_address_that_is_taken_is_named() -> None:
    async def play() -> None:
        async with serving_page(HERE, "/metrics", TEXT, str) as address:
            with pytest.raises(LinkError, match="cannot listen at 127"):
                async with serving_page(address, "/metrics", TEXT, str):
                    pass

    asyncio.run(play())
