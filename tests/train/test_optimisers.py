import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from anabranch.train.checksum import checksum
from anabranch.train.optimisers import Adam, Sgd
from anabranch_lab.tasks.models import build_model

ELEMENTS = 40_000  # more than two blocks, and no whole number of them

RULES = {
    "sgd": (Sgd(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "nesterov": (
        Sgd(0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "momentum": (Sgd(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adam": (Adam(1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
    "adam, other decays": (
        Adam(1e-2, mean_decay=0.5, square_decay=0.9, epsilon=1e-3),
        lambda p: torch.optim.Adam(p, 1e-2, betas=(0.5, 0.9), eps=1e-3),
    ),
}


@pytest.mark.parametrize(("rule", "theirs"), RULES.values(), ids=RULES)
def test_each_rule_is_the_one_torch_has(rule, theirs):
    generator = np.random.default_rng(0)
    parameters = generator.standard_normal(ELEMENTS, dtype=np.float32)
    reference = torch.nn.Parameter(torch.from_numpy(parameters.copy()))
    update, optimiser = rule.start(ELEMENTS), theirs([reference])
    for _ in range(20):
        gradients = generator.standard_normal(ELEMENTS, dtype=np.float32)
        given = gradients.copy()
        update(parameters, gradients)
        np.testing.assert_array_equal(gradients, given)
        reference.grad = torch.from_numpy(gradients)
        optimiser.step()
    np.testing.assert_allclose(parameters, reference.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_the_first_step_of_adam_has_the_size_of_the_learning_rate():
    parameters = np.zeros(3, np.float32)
    Adam(0.25).start(3)(parameters, np.array([1e-3, -5.0, 1e4], np.float32))
    np.testing.assert_allclose(parameters, [-0.25, 0.25, -0.25], rtol=1e-4)


@pytest.mark.parametrize("make", [Sgd, Adam])
def test_a_scale_is_a_learning_rate_for_one_step(make):
    gradients = np.array([1.0, -2.0, 3.0], np.float32)
    scaled, other = np.zeros(3, np.float32), np.zeros(3, np.float32)
    make(0.5).start(3)(scaled, gradients, 0.25)
    make(0.125).start(3)(other, gradients)
    np.testing.assert_array_equal(scaled, other)


PORTABLE = """
import numpy as np
from anabranch.train.checksum import checksum
from anabranch_lab.tasks._flat import FlatModel
from anabranch_lab.tasks.models import build_model
from anabranch.train.optimisers import Adam

for name in "lenet-5", "cnn", "resnet-20":
    flat = FlatModel(build_model(name, (1, 28, 28), 10, seed=3))
    update = Adam(1e-3).start(flat.parameters.size)
    generator = np.random.default_rng(4)
    for _ in range(3):
        update(flat.parameters, generator.standard_normal(flat.parameters.size, dtype=np.float32))
    print(checksum(flat.parameters))
"""


@pytest.mark.slow
def test_build_and_update_give_the_same_bits_on_a_processor_without_vector_instructions():
    def run(**environment):
        command = [sys.executable, "-c", PORTABLE]
        environment = os.environ | environment
        return subprocess.check_output(command, env=environment, text=True)

    assert run(ATEN_CPU_CAPABILITY="default") == run()


def test_a_built_model_has_the_bits_it_always_had():
    model = build_model("softmax", (1, 8, 8), 10, seed=0)
    values = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    assert checksum(values) == 0x5E0C9C2EC8B1ACBA


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Sgd(0.1, nesterov=True), "nesterov looks ahead along the momentum"),
        (lambda: Sgd(0.0), "learning_rate is 0, which must be > 0"),
        (lambda: Adam(float("nan")), "learning_rate is nan"),
        (lambda: Sgd(0.1, momentum=1.0), r"momentum is 1, which must be in \[0, 1\)"),
        (lambda: Adam(0.1, mean_decay=-0.1), "mean_decay"),
        (lambda: Adam(0.1, square_decay=1.5), "square_decay"),
        (lambda: Adam(0.1, epsilon=0.0), "epsilon"),
    ],
)
def test_settings_outside_their_range_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
