from anabranch import record

from ..every import every


def test_exported_names_exist_and_are_sorted() -> None:
    assert record.__all__ == sorted(record.__all__)
    assert every(hasattr(record, name) for name in record.__all__)
