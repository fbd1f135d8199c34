"""A test whose sites wait for one that has failed ends, with what that one raised."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch
from anabranch import Group
from anabranch.group._local import _complete, _serving
from anabranch.scheduler.deal import ByShare

from . import threads
from .threads import Threads, at_each


def reduce_unless_last(group: Group) -> None:
    if group.rank == group.size - 1:
        raise AssertionError("as none has thought of")
    group.all_reduce(np.ones(3, np.float32))


def test_groups_are_ended_where_the_calls_of_one_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_PATIENCE_S", 0.0)
    with (
        pytest.raises(AssertionError, match="as none has thought of"),
        anabranch.local(3) as groups,
    ):
        at_each(groups, reduce_unless_last)


def test_a_service_ends_before_the_threads_that_wait_for_it() -> None:
    service = anabranch.Service(_complete(3), awareness=None, deal=ByShare())

    def join(name: str) -> None:
        if name == "site2":
            raise AssertionError("it never joins")
        anabranch.join(address, name, token=token, patience_s=1.0)

    with (
        pytest.raises(AssertionError, match="it never joins"),
        Threads(3) as pool,
        _serving(service) as (address, token),
    ):
        pool.each(join, ("site0", "site1", "site2"))
