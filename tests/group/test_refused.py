"""A site and a scheduler that do not trust one another: both say why, at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import anabranch
from anabranch.group._local import _complete
from anabranch.group._thread import LoopThread
from anabranch.group.log import RunLog
from anabranch.log.console import Console
from anabranch.net.addresses import show
from anabranch.net.errors import NetError
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import SCHEDULER, Credentials
from anabranch.scheduler.server import Scheduler

CERTIFICATES = Path(__file__).parent.parent / "net" / "certs"


@contextmanager
def scheduler(tls: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Run a scheduler until it has said something; yield its address and its lines."""
    said: list[str] = []
    thread = LoopThread("scheduler")
    service = anabranch.Service(_complete(2), awareness=None)
    credentials = None if tls is None else Credentials(tls, SCHEDULER)

    async def start() -> tuple[Scheduler, str]:
        console = Console(["a", "b"], lambda line: said.append(line.text))
        log = RunLog(None, service.run_started, console)
        network = TcpNetwork(CONTROL_LIMITS, credentials=credentials)
        made = service.scheduler(network, "t", log)
        return made, show(await made.listen(("127.0.0.1", 0)))

    running, address = thread.run(start())

    async def end() -> None:
        running.abort("the test is over")
        await running.close()

    try:
        yield address, said
    finally:
        until_s = time.monotonic() + 20.0
        while not said and time.monotonic() < until_s:  # a busy machine's thread may be late
            time.sleep(0.01)
        thread.run(end())
        thread.close()


def named_otherwise(folder: Path, name: str, whose: str) -> Path:
    """Return a folder in which a process has the certificate of another."""
    shutil.copytree(CERTIFICATES / "ours", folder)
    for ending in ("pem", "key"):
        shutil.copy(folder / f"{whose}.{ending}", folder / f"{name}.{ending}")
    return folder


OURS, THEIRS = CERTIFICATES / "ours", CERTIFICATES / "theirs"


@pytest.mark.timeout(60)  # as long as a site would try
@pytest.mark.parametrize(
    ("theirs", "mine", "at_the_site", "at_the_scheduler"),
    [
        (OURS, None, "the other end speaks TLS, and", "the other end speaks without TLS, and"),
        (None, OURS, "the other end speaks without TLS, and", "the other end speaks TLS, and"),
        (OURS, THEIRS, "certificate is not believed here", "does not believe this process's"),
        ("scheduler as a", OURS, "of site-a, not of scheduler", "of site-a, not of scheduler"),
        (OURS, "a as b", "of site-b, not of site-a", "of site-b, not of site-a"),
    ],
    ids=["plain to TLS", "TLS to plain", "foreign authority", "wrong scheduler", "wrong site"],
)
def test_a_site_is_refused_at_once_and_both_ends_say_why(
    theirs: Path | str | None,
    mine: Path | str | None,
    at_the_site: str,
    at_the_scheduler: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if isinstance(theirs, str):
        theirs = named_otherwise(tmp_path / "theirs", "scheduler", "site-a")
    if isinstance(mine, str):
        mine = named_otherwise(tmp_path / "mine", "site-a", "site-b")
    with scheduler(theirs) as (address, said), pytest.raises(NetError, match=at_the_site) as raised:
        anabranch.join(address, "a", token="t", tls=mine, patience_s=300.0)
    told = [line for line in said if at_the_scheduler in line]
    assert len(told) == 1, said
    assert "refused" in told[0]
    for line in (str(raised.value), told[0]):
        assert "WRONG_VERSION_NUMBER" not in line
    assert "tries for" not in capfd.readouterr().err
