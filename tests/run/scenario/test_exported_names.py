"""The front of the scenario names what a whole one needs, and no table of its modules."""

from types import ModuleType

from anabranch_lab.run import scenario


def test_exported_names_are_sorted_and_real() -> None:
    assert scenario.__all__ == sorted(scenario.__all__)
    names = {name for name, value in vars(scenario).items() if not isinstance(value, ModuleType)}
    assert {name for name in names if not name.startswith("_")} == set(scenario.__all__)
