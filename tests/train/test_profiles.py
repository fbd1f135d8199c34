import subprocess
import sys

import pytest

from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.profiles import ALEXNET, PROFILES, RESNET_32_INSTANCES, load_profile


def test_alexnet_has_the_published_61_100_840_parameters():
    assert ALEXNET.elements == 61_100_840
    assert ALEXNET.size_bytes == 244_403_360


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("vgg-16", 138_357_544),
        ("mobilenet", 4_231_976),
        ("resnet-18", 11_689_512),
        ("resnet-34", 21_797_672),
        ("resnet-50", 25_557_032),
        ("resnet-101", 44_549_160),
        ("resnet-152", 60_192_808),
        ("cnn", 2_156_490),
        ("resnet-20", 269_722),
        ("resnet-32", 464_154),
        ("lstm", 220_426),
        ("inception-v3", 23_834_568),
        ("bert", 109_483_778),
        ("t5-small", 60_506_624),
    ],
)
def test_each_profile_has_the_parameters_that_libraries_count(name, elements):
    assert load_profile(name).elements == elements
    assert len({name for name, _ in load_profile(name).shapes}) == len(load_profile(name).shapes)
    assert sum(load_profile(name).tensors) == elements


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("alexnet", 16),
        ("mobilenet", 83),
        ("resnet-18", 62),
        ("resnet-50", 161),
        ("resnet-152", 467),
    ],
)
def test_a_profile_has_as_many_tensors_as_libraries_count(name, tensors):
    assert len(load_profile(name).tensors) == tensors


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (3, 32, 32)),
        ("resnet-20", (3, 32, 32)),
        ("resnet-32", (3, 32, 32)),
        ("lstm", (1, 49, 40)),
    ],
)
def test_a_small_network_s_profile_has_the_shapes_of_the_model(name, shape):
    model = build_model(name, shape, 10, seed=0)
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [shape for _, shape in load_profile(name).shapes]


def test_the_instances_wait_for_each_other_as_the_paper_says():
    slowest, *fast = RESNET_32_INSTANCES
    for instance, blocked_s, tuned in zip(fast, (0.62, 0.82), (901, 1264), strict=True):
        waits_s = slowest.step_s(512) - instance.step_s(512)
        assert waits_s == pytest.approx(blocked_s, abs=0.005)
        assert 512 + waits_s * instance.samples_per_s == pytest.approx(tuned, rel=0.005)


def test_profiles_are_found_by_name_and_an_unknown_one_names_the_nearest():
    assert [load_profile(name).name for name in PROFILES] == list(PROFILES)
    with pytest.raises(ValueError, match="no profile 'alex-net'; did you mean 'alexnet'"):
        load_profile("alex-net")


def test_what_a_run_without_training_needs_loads_no_torch():
    code = """
import sys
import anabranch_lab.tasks.adversaries, anabranch.train.checksum, anabranch_lab.tasks.partition
import anabranch_lab.tasks.profiles, anabranch_lab.tasks.sampling
print({"torch", "asyncio", "sklearn", "pooch"} & set(sys.modules))
import anabranch_lab.run.scenario
print({"torch", "sklearn", "pooch"} & set(sys.modules))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\nset()\n"
