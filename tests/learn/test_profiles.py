import subprocess
import sys

import pytest

from anabranch.learn.profiles import ALEXNET, PROFILES, load_profile


def test_alexnet_has_the_published_61_100_840_parameters():
    assert ALEXNET.elements == 61_100_840
    assert ALEXNET.size_bytes == 244_403_360


def test_profiles_are_found_by_name_and_an_unknown_one_names_the_nearest():
    assert [load_profile(name).name for name in PROFILES] == list(PROFILES)
    with pytest.raises(ValueError, match="no profile 'alex-net'; did you mean 'alexnet'"):
        load_profile("alex-net")


def test_what_a_run_without_training_needs_loads_no_torch():
    code = """
import sys
import anabranch.learn.checksum, anabranch.learn.partition, anabranch.learn.profiles
print({"torch", "asyncio", "sklearn", "pooch"} & set(sys.modules))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
