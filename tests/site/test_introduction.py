"""What a site says of itself as it joins: where others find it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.net.messages import Join
from anabranch.site.agent import SiteAgent


class Elsewhere:
    """A network that leads to a scheduler on another machine, which never answers."""

    identity = None
    their_challenge = b"challenge"
    hosts = "10.0.0.2", "10.0.0.1"
    peer = "10.0.0.1:7700"

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.is_closed = False

    async def connect(self, address: tuple[str, int], receiver: Any) -> Elsewhere:
        return self

    def post(self, message: Any) -> None:
        self.said.put_nowait(message)

    def close(self) -> None:
        self.is_closed = True


class Listening:
    """A network on which others find this site; any address is this machine's."""

    async def listen(self, address: tuple[str, int], welcome: Any) -> Listening:
        self.address = address[0], address[1] or 40001
        return self

    def close(self) -> None:
        pass


def introduced(
    listen: tuple[str | None, int] | None, advertise: str | None = None
) -> tuple[Join, Elsewhere]:
    """Return what a site says to a scheduler on another machine, and the way there."""

    async def play() -> tuple[Join, Elsewhere]:
        scheduler, here = Elsewhere(), Listening()
        agent = SiteAgent(
            *(scheduler, here, "paris", "token", listen, None, lambda *_: None),  # type: ignore[arg-type]
            advertise=advertise,
        )
        joining = asyncio.ensure_future(agent.join(("10.0.0.1", 7700)))
        try:
            saying = asyncio.ensure_future(scheduler.said.get())
            await asyncio.wait([joining, saying], return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                assert scheduler.is_closed
                joining.result()
            return await saying, scheduler
        finally:
            for task in (joining, saying):
                task.cancel()
            await asyncio.gather(joining, saying, return_exceptions=True)
            agent.close()

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("listen", "advertise", "found_at"),
    [
        ((None, 0), None, ("10.0.0.2", 40001)),
        ((None, 7702), None, ("10.0.0.2", 7702)),
        (("10.9.0.1", 7702), None, ("10.9.0.1", 7702)),
        (("0.0.0.0", 7702), "paris.example.org", ("paris.example.org", 7702)),
        ((None, 7702), "paris.example.org", ("paris.example.org", 7702)),
        (None, None, ("", 0)),
    ],
)
def test_a_site_is_offered_where_it_reaches_a_scheduler_elsewhere_from(
    listen: tuple[str | None, int] | None, advertise: str | None, found_at: tuple[str, int]
) -> None:
    join, _ = introduced(listen, advertise)
    assert (join.name, join.host, join.port) == ("paris", *found_at)


def test_a_site_that_only_its_own_machine_finds_is_refused_before_it_joins() -> None:
    with pytest.raises(ValueError, match=r"host is '127.0.0.1', where only this machine's own"):
        introduced(("127.0.0.1", 0))
