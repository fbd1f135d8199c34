"""What ranks say of a call, and when they disagree."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.torch._agreement import CallDescription, agreed

NAMES = ("west", "east")


def gathered(*said: CallDescription) -> dict[str, bytes]:
    return {name: msgspec.msgpack.encode(each) for name, each in zip(NAMES, said, strict=False)}


def test_what_ranks_give_to_one_call_is_returned_by_rank():
    said = gathered(CallDescription("barrier", b"a"), CallDescription("barrier", b"b"))
    assert agreed("barrier", 0, NAMES, said, is_by_gloo=False) == [b"a", b"b"]


def test_ranks_that_make_different_calls_are_named_with_both():
    said = gathered(CallDescription("all_reduce of 3"), CallDescription("all_reduce of 4"))
    wanted = r"rank 0 \(west\) calls all_reduce of 3, and rank 1 \(east\) calls all_reduce of 4;"
    with pytest.raises(ValueError, match=wanted):
        agreed("all_reduce of 3", 0, NAMES, said, is_by_gloo=True)
    wanted = r"rank 1 \(east\) calls all_reduce of 4, and rank 0 \(west\) calls all_reduce of 3;"
    with pytest.raises(ValueError, match=wanted):
        agreed("all_reduce of 4", 1, NAMES, said, is_by_gloo=True)


def test_a_rank_that_is_lost_is_named():
    with pytest.raises(RuntimeError, match=r"reduce: rank 1 \(east\) is lost or has left"):
        agreed("reduce", 0, NAMES, gathered(CallDescription("reduce")), is_by_gloo=True)


def test_a_rank_without_gloo_is_named_where_gloo_is_to_carry_the_call():
    said = gathered(CallDescription("reduce"), CallDescription("reduce", over="recv from 0: late"))
    with pytest.raises(
        RuntimeError, match=r"rank 1 \(east\) can make no gloo call: recv from 0: late"
    ):
        agreed("reduce", 0, NAMES, said, is_by_gloo=True)
    assert agreed("reduce", 0, NAMES, said, is_by_gloo=False) == [b"", b""]


@pytest.mark.parametrize("other", [b"", b"\xc0", msgspec.msgpack.encode([1, 2])])
def test_a_call_of_the_group_itself_is_another_call(other):
    said = gathered(CallDescription("barrier")) | {"east": other}
    with pytest.raises(ValueError, match="all_gather or barrier of the group itself"):
        agreed("barrier", 0, NAMES, said, is_by_gloo=False)
