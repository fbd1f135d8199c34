import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from anabranch.train.checksum import checksum
from anabranch.train.optimisers import Adam
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.partition import partition_evenly
from anabranch_lab.tasks.profiles import load_profile
from anabranch_lab.tasks.train import Trainer

TASKS = {"bert-tiny": "pairs", "t5-tiny": "translation", "bert": "pairs", "t5-small": "translation"}
TINY = ["bert-tiny", "t5-tiny"]


@pytest.fixture
def _transformers():
    """What these models are made of, which is an extra: without it, such a test skips."""
    pytest.importorskip("transformers", reason="needs pip install 'anabranch[text]'")


def build(name, task=None, seed=0):
    task = load_task(TASKS[name]) if task is None else task
    return build_model(name, task.shape, task.classes, seed, vocabulary=task.vocabulary)


def flatten(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", TASKS)
def test_a_missing_package_is_named_with_the_command_that_brings_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=rf"{name}.*pip install 'anabranch\[text\]'"):
        build(name)


def test_a_model_of_images_refuses_tokens_and_one_of_tokens_images(digits):
    with pytest.raises(ValueError, match=r"'mlp' takes images .*, not tokens .*bert-tiny"):
        build("mlp", load_task("pairs"))
    with pytest.raises(ValueError, match="'bert-tiny' reads tokens, and the task has none"):
        build("bert-tiny", digits)


@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize(("name", "other"), [("bert-tiny", "translation"), ("t5-tiny", "pairs")])
def test_a_model_of_one_kind_of_tokens_refuses_the_other(name, other):
    with pytest.raises(ValueError, match=rf"'{name}' reads .* take '{TASKS[name]}'"):
        build(name, load_task(other))


@pytest.mark.slow
@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", ["bert", "t5-small"])
def test_a_published_size_has_the_shapes_of_its_profile_and_fits_its_task(name):
    model = build(name)
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [shape for _, shape in load_profile(name).shapes]
    task = load_task(TASKS[name])
    with torch.inference_mode():
        logits = model(task.held_out_inputs[:2])
    assert logits.shape == ((2, 2) if name == "bert" else (2, 6, 32_128))
    assert logits.isfinite().all()


@pytest.mark.usefixtures("_transformers")
def test_a_published_vocabulary_too_small_for_the_task_is_refused():
    task = load_task("pairs")
    with pytest.raises(ValueError, match="'bert' has 30522 tokens, and the task 40000"):
        build("bert", replace(task, vocabulary=40_000))


@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", TINY)
def test_one_seed_builds_one_model_whatever_torch_draws(name):
    first = build(name, seed=1)
    torch.rand(7)
    before = torch.get_rng_state()
    assert torch.equal(flatten(build(name, seed=1)), flatten(first))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(flatten(build(name, seed=2)), flatten(first))


PORTABLE = """
from anabranch.train.checksum import checksum
from anabranch_lab.tasks._flat import FlatModel
from anabranch_lab.tasks.models import build_model

for name, shape in ("bert-tiny", (18,)), ("t5-tiny", (2, 6)):
    flat = FlatModel(build_model(name, shape, 2, seed=3, vocabulary=35))
    print(checksum(flat.parameters))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_transformers")
def test_building_gives_the_same_bits_on_a_processor_without_vector_instructions():
    def run(**environment):
        command = [sys.executable, "-c", PORTABLE]
        environment = os.environ | environment
        return subprocess.check_output(command, env=environment, text=True)

    assert run(ATEN_CPU_CAPABILITY="default") == run()


@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", TINY)
def test_initial_values_spread_as_those_of_transformers(name):
    from transformers import BertForSequenceClassification, T5ForConditionalGeneration

    network = build(name).network
    kind = BertForSequenceClassification if name == "bert-tiny" else T5ForConditionalGeneration
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        theirs = dict(kind(network.config).named_parameters())
    for path, parameter in network.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter, theirs[path]), path
        elif parameter.numel() > 1000:
            deviation = theirs[path].std().item()
            assert parameter.std().item() == pytest.approx(deviation, rel=0.1), path
            assert parameter.mean().item() == pytest.approx(0, abs=0.1 * deviation), path


@pytest.mark.usefixtures("_transformers")
def test_what_is_said_of_a_word_depends_on_no_later_one():
    task = load_task("translation")
    model = build("t5-tiny").eval()
    inputs = task.held_out_inputs[:4].clone()
    with torch.inference_mode():
        before = model(inputs)
        inputs[:, 1, 3:] = 20
        after = model(inputs)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3:], before[:, 3:])


@pytest.mark.slow
@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize(
    ("name", "rate", "steps"), [("bert-tiny", 3e-4, 170), ("t5-tiny", 1e-3, 80)]
)
def test_two_sites_hold_one_model_bit_for_bit_and_it_learns_the_rule(name, rate, steps):
    task = load_task(TASKS[name])
    sites = [
        Trainer(task, build(name, task), shard, Adam(rate), batch_size=32, seed=site)
        for site, shard in enumerate(partition_evenly(len(task.train_labels), 2, seed=0))
    ]
    assert sites[0].accuracy() < 0.6
    for _ in range(steps):
        for site in sites:
            site.compute_gradients()
        mean = sum(site.flat.gradients for site in sites) / np.float32(2)
        for site in sites:
            site.flat.gradients[:] = mean
            site.update()
    assert checksum(sites[0].flat.parameters) == checksum(sites[1].flat.parameters)
    assert sites[0].accuracy() == sites[1].accuracy() > 0.8
