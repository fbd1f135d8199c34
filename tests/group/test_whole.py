"""A group that tells, of each member that is lost, those that cannot go on without it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future

import pytest

import anabranch
from anabranch import ExchangeError, Group, RunAborted
from anabranch.group._local import _complete, _serving
from anabranch.group._whole import Whole

from ..threads import Threads, at_each

LIMIT_S = 60.0
WHY = "site 1 (site1) failed: KeyError: 'no such file'"


@pytest.mark.parametrize("on_loss", ["complete", "abort"])
def test_those_that_watch_a_lost_member_are_told_and_no_others(on_loss) -> None:
    def play(group: Group) -> tuple[str, bool]:
        whole = group.watch_whole()
        part = group.subgroup(["site0", "site2"]) if group.rank != 1 else None
        try:
            with group:
                group.barrier()
                if part is None:
                    raise KeyError("no such file")
                watched = part.watch_whole()
                error = whole.exception(LIMIT_S)
                others_go_on = not watched.done()
        except (KeyError, RunAborted):
            others_go_on = False
            error = whole.exception(LIMIT_S) if part is not None else None
        if part is not None:
            assert isinstance(error, ExchangeError if on_loss == "complete" else RunAborted)
            assert watched.cancelled() == others_go_on
        return str(error), others_go_on

    service = anabranch.Service(_complete(3), awareness=None, on_loss=on_loss)
    with anabranch.local(service) as groups:
        said = at_each(groups, play)
    assert [said[0], said[2]] == [(WHY, on_loss == "complete")] * 2


def test_who_watches_late_is_told_of_losses_since_the_members_were_known() -> None:
    whole, ended = Whole(), Future[None]()
    whole.lost(1, "site 1 is gone", 0)
    error = whole.watch((0, 1, 2), ended, 0).exception(LIMIT_S)
    assert isinstance(error, ExchangeError)
    assert str(error) == "site 1 is gone"
    assert not whole.watch((0, 2), ended, 0).done()
    let_in = whole.watch((0, 1, 2), ended, 1)  # an admission has let it in again
    assert not let_in.done()
    assert not whole.watch((0, 1, 2), ended, None).done()
    whole.lost(1, "site 1 is gone again", 1)
    for each in (let_in, whole.watch((0, 1, 2), ended, 1)):
        assert str(each.exception(LIMIT_S)) == "site 1 is gone again"


def test_a_member_that_is_lost_before_a_program_has_heard_of_it_fails_what_watches() -> None:
    with anabranch.local(anabranch.Service(_complete(3), awareness=None)) as (one, other, third):
        part = one.subgroup(["site0"])
        before = one.watch_whole()
        other.__exit__(KeyError, KeyError("no such file"), None)
        assert str(before.exception(LIMIT_S)) == WHY
        assert one.sites == ("site0", "site1", "site2")  # no call has shown the loss yet
        after = one.watch_whole()
        assert isinstance(after.exception(LIMIT_S), ExchangeError)
        assert not part.watch_whole().done()
        at_each((one, third), Group.barrier)
        assert one.sites == ("site0", "site2")
        assert not one.watch_whole().done()


def test_a_group_that_is_left_cancels_what_watches_it() -> None:
    with anabranch.local(2) as groups:
        watched = [group.watch_whole() for group in groups]
    assert [each.cancelled() for each in watched] == [True, True]


JOINS = """
import anabranch
with anabranch.join() as group:
    group.barrier()
    print("begun", flush=True)
    group.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("on_loss", ["complete", "abort"])
def test_a_process_of_this_machine_that_is_killed_is_lost_without_the_patience_for_a_network(
    on_loss, monkeypatch
) -> None:
    """Without lanes no neighbour notices its end: the scheduler alone does."""
    monkeypatch.setattr("anabranch.net.session.LEAST_PATIENCE_S", 100 * LIMIT_S)
    monkeypatch.setattr("anabranch.scheduler.run.LEAST_PATIENCE_S", 100 * LIMIT_S)
    service = anabranch.Service(_complete(3), awareness=None, on_loss=on_loss)
    with Threads(2) as pool, _serving(service) as (address, token):
        place = {"SCHEDULER": address, "SITE": "site1", "TOKEN": token}
        with subprocess.Popen(
            [sys.executable, "-c", JOINS],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **{f"ANABRANCH_{name}": said for name, said in place.items()}},
        ) as lost:
            try:

                def play(name: str) -> str:
                    with anabranch.join(address, name, token=token) as group:
                        group.barrier()
                        if name == "site0":
                            assert lost.stdout is not None
                            assert lost.stdout.readline() == "begun\n"
                            lost.kill()  # and its parent does not wait for it
                        return str(group.watch_whole().exception(LIMIT_S))

                def told(name: str) -> str:
                    try:
                        return play(name)
                    except RunAborted as error:  # which leaving says again
                        return str(error)

                said = pool.each(told, ["site0", "site2"])
            finally:
                lost.kill()
    for each in said:
        assert f"site 1 (site1) died before the first round: process {lost.pid} of this" in each
