"""A site that waits says so within two seconds: what it tries, at which address, until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.net.errors import LinkError, UnauthorisedPeer, UntrustedPeer
from anabranch.net.messages import Refusal
from anabranch.site._waiting import SAID_AFTER_S, SAID_AGAIN_S, saying
from anabranch.site.agent import SiteAgent
from anabranch_lab.sim.loop import run_virtually

SCHEDULER = "10.0.0.1", 7700


class Way:
    """A network on which connecting does this, and a connection that never says anything."""

    their_challenge = b"challenge"
    hosts = "10.0.0.2", "10.0.0.1"
    peer = "10.0.0.1:7700"

    def __init__(self, connecting: Callable[[], Any], identity: str | None = None) -> None:
        self._connecting = connecting
        self.identity = identity
        self.attempts = 0
        self.posted: list[Any] = []
        self.is_closed = False

    async def connect(self, address: tuple[str, int], receiver: Any) -> Way:
        self.attempts += 1
        await self._connecting()
        return self

    def post(self, message: Any) -> None:
        self.posted.append(message)

    def close(self) -> None:
        self.is_closed = True


def joined(way: Way, patience_s: float, for_s: float) -> tuple[list[tuple[float, str]], Any]:
    """Join for a while of virtual time; return what was said and when, and how it ended."""

    async def play() -> tuple[list[tuple[float, str]], Any]:
        loop, said = asyncio.get_running_loop(), []

        def say(line: str) -> None:
            said.append((loop.time() - began_s, line))

        agent = SiteAgent(way, way, "paris", "token", None, None, lambda *_: None)  # type: ignore[arg-type]
        began_s = loop.time()
        joining = asyncio.ensure_future(agent.join(SCHEDULER, patience_s, say))
        await asyncio.wait([joining], timeout=for_s)
        joining.cancel()
        (ended,) = await asyncio.gather(joining, return_exceptions=True)
        agent.close()
        return said, ended

    return run_virtually(play())


async def refused() -> None:
    raise LinkError("cannot connect to 10.0.0.1:7700: connection refused")


async def nothing() -> None:
    await asyncio.sleep(10)
    raise LinkError("cannot connect to 10.0.0.1:7700: nothing answered in 10 s")


async def answered() -> None:
    pass


def test_a_scheduler_that_is_down_is_named_with_how_long_it_is_tried() -> None:
    said, ended = joined(Way(refused), 60.0, 61.0)
    expected = [SAID_AFTER_S, SAID_AFTER_S + SAID_AGAIN_S, SAID_AFTER_S + 3 * SAID_AGAIN_S]
    assert [at_s for at_s, _ in said] == expected
    assert said[0][0] < 2.0
    assert said[0][1] == (
        "no scheduler at 10.0.0.1:7700: cannot connect to 10.0.0.1:7700: connection refused; tries "
        "for 58 s more"
    )
    assert isinstance(ended, LinkError)


def test_so_is_one_behind_a_firewall_before_the_first_attempt_has_ended() -> None:
    said, _ = joined(Way(nothing), 60.0, 3.0)
    assert [line for _, line in said] == [
        "no scheduler at 10.0.0.1:7700: nothing answers; tries for 58 s more"
    ]


def test_a_site_that_waits_for_the_others_says_so() -> None:
    said, _ = joined(Way(answered), 60.0, 3.0)
    assert said == [(SAID_AFTER_S, "joined at 10.0.0.1:7700; waits for the others")]


def test_what_no_further_attempt_would_mend_is_not_tried_again() -> None:
    async def untrusted() -> None:
        raise UntrustedPeer("the other end speaks TLS")

    way = Way(untrusted)
    said, ended = joined(way, 60.0, 61.0)
    assert (way.attempts, said) == (1, [])
    assert isinstance(ended, UntrustedPeer)


def test_a_scheduler_by_another_name_hears_that_it_is_not_taken_for_one() -> None:
    way = Way(answered, "anabranch:site:austin")
    said, ended = joined(way, 60.0, 61.0)
    assert (way.attempts, said, way.is_closed) == (1, [], True)
    assert isinstance(ended, UnauthorisedPeer)
    assert way.posted == [Refusal("UnauthorisedPeer", str(ended))]
    assert "has the certificate of site-austin, not of scheduler" in str(ended)


def test_what_is_over_soon_is_not_told() -> None:
    async def play() -> list[str]:
        said: list[str] = []
        with saying(said.append, lambda: "it takes long"):
            await asyncio.sleep(SAID_AFTER_S - 0.1)
        await asyncio.sleep(100)
        with pytest.raises(TimeoutError), saying(said.append, lambda: "it fails"):
            raise TimeoutError
        await asyncio.sleep(100)
        return said

    assert run_virtually(play()) == []
