"""Results without all contributions are counted, and said once for the same sites."""

from __future__ import annotations

from anabranch.group._incomplete import Incomplete
from anabranch.net.messages import Contribution
from anabranch.site.round import Round

NAMES = ("paris", "austin", "tokyo")


def done(number: int, *contributions: tuple[int, int, tuple[int, ...]]) -> Round:
    found = tuple(Contribution(*each) for each in contributions)
    return Round(number, 1, 0.5, contributions=found)


def test_a_whole_result_is_nothing_to_say() -> None:
    incomplete = Incomplete(NAMES)
    assert incomplete.note(done(1), (0, 1, 2)) == ""
    assert incomplete.note(done(2, (0, 100, (0, 2))), (0, 2)) == ""  # austin is no member
    assert incomplete.count == 0


def test_each_lack_is_counted_and_said_once_for_the_same_sites() -> None:
    incomplete = Incomplete(NAMES)
    parts = (0, 40, (0, 1, 2)), (40, 100, (0, 2))
    said = incomplete.note(done(7, *parts), (0, 1, 2))
    assert said.startswith(
        "the result of exchange 7 lacks contributions of austin (in 60 of 100 elements); "
    )
    assert incomplete.note(done(8, (0, 100, (0, 2))), (0, 1, 2)) == ""
    assert "of austin (in 60 of 100 elements), tokyo (in 60" in incomplete.note(
        done(9, (0, 40, (0, 1, 2)), (40, 100, (0,))), (0, 1, 2)
    )
    assert incomplete.count == 3


def test_a_member_that_catches_up_is_no_loss() -> None:
    part = Contribution(0, 100, (0, 1))
    late = Round(7, 1, 0.5, members=(0, 1, 2), contributions=(part,))
    said = Incomplete(NAMES).note(late, (0, 1, 2))
    assert said.startswith(
        "the result of exchange 7 has none of tokyo yet, which joined lately and is catching up; "
    )
    lost_too = Round(7, 1, 0.5, members=(0, 2), contributions=(Contribution(0, 100, (0,)),))
    assert "lacks contributions of austin (in 100 of 100 elements); it has none of tokyo yet" in (
        Incomplete(NAMES).note(lost_too, (0, 1, 2))
    )
