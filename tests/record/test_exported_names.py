from anabranch import record


def test_exported_names_exist_and_are_sorted() -> None:
    assert record.__all__ == sorted(record.__all__)
    assert all(hasattr(record, name) for name in record.__all__)
