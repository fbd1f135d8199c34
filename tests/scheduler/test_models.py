"""Members' models, by the checksums that were told beside their requests."""

from __future__ import annotations

import pytest

from anabranch.net.messages import Model
from anabranch.scheduler._models import Models, UnlikeModels

from ..every import every


def models(*checksums: int | None, step: int = 1, is_first: bool = True) -> Models:
    """Return what has heard a checksum of each site beside exchange 7."""
    made = Models("site{}".format)
    tell(made, 7, *checksums, step=step, is_first=is_first)
    return made


def tell(to: Models, number: int, *checksums: int | None, step: int = 1, is_first: bool) -> None:
    for site, checksum in enumerate(checksums):
        if checksum is not None:
            to.hear(number, site, Model(step, checksum, is_first))


@pytest.mark.parametrize("checksums", [(), (None, None), (5,), (5, 5, 5), (None, 5, 5)])
def test_models_that_are_alike_or_unknown_are_no_news(checksums: tuple[int | None, ...]) -> None:
    assert models(*checksums).compare(7) is None


def test_models_that_began_unlike_are_named_as_such() -> None:
    unlike = models(5, 6, 5, None, 7).compare(7)
    assert unlike is not None
    assert unlike.is_first
    assert unlike.reason.startswith(
        "models differ before their first step: that of site1, site4 is not that of site0; "
        "call group.broadcast(model)"
    )


def test_models_that_part_later_are_named_once_for_the_same_sites() -> None:
    made = models(5, 6, 5, step=4, is_first=False)
    unlike = made.compare(7)
    assert unlike is not None
    assert not unlike.is_first
    assert "the model of site1 no longer equals that of site0" in unlike.reason
    tell(made, 8, 5, 9, 5, step=8, is_first=False)
    assert made.compare(8) is None
    tell(made, 9, 5, 9, 7, step=16, is_first=False)
    other = made.compare(9)
    assert other is not None
    assert "site1, site2" in other.reason


def test_models_of_other_steps_are_not_compared() -> None:
    made = Models("site{}".format)
    for site, (step, checksum) in enumerate([(1, 5), (2, 6), (2, 6)]):
        made.hear(3, site, Model(step, checksum, is_first=step == 1))
    assert made.compare(3) is None


def test_a_site_that_has_made_steps_makes_a_difference_no_error() -> None:
    made = Models("site{}".format)
    made.hear(3, 0, Model(2, 5, is_first=True))
    made.hear(3, 1, Model(2, 6, is_first=False))
    unlike = made.compare(3)
    assert unlike is not None
    assert not unlike.is_first


def test_many_sites_are_counted() -> None:
    unlike = models(0, *range(1, 30)).compare(7)
    assert isinstance(unlike, UnlikeModels)
    assert "site8, 21 more is not that of site0" in unlike.reason


def test_comparisons_that_are_never_settled_are_forgotten() -> None:
    made = Models("site{}".format)
    for number in range(100):
        tell(made, number, 5, 6, is_first=True)
    assert every(made.compare(number) is None for number in range(84))
    assert made.compare(99) is not None
