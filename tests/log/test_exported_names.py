from anabranch import log

from ..every import every


def test_exported_names_exist_and_are_sorted() -> None:
    assert log.__all__ == sorted(log.__all__)
    assert every(hasattr(log, name) for name in log.__all__)
