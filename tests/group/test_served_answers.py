"""A group's served model takes the answers that a scenario's takes: load, merge rules, `serve`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import anabranch
from anabranch import Group
from anabranch.group.service import Serving
from anabranch.merge import DataSize, Fairness, Krum, Median, OutlierFilter, Product, Staleness
from anabranch.overlay import Overlay, random_complete
from anabranch.pace import Asp, Bsp, FedAvg, R2sp, StatedBatches, TunedBatches
from anabranch.scheduler.deal import Adaptive
from anabranch.scheduler.paced import Serve

from ..every import every

OVERLAY = random_complete(3, 0)
NAMES = [site.name for site in OVERLAY.sites]


def served(
    work: Callable[[Group, torch.Tensor], Any], overlay: Overlay = OVERLAY, **given: Any
) -> list[Any]:
    """Let every site of a group serve one parameter of two ones, and work; return what they do."""
    service = anabranch.Service(overlay, awareness=None, **given)

    def live(group: Group) -> Any:
        parameter = torch.ones(2)
        group.serve([parameter], learning_rate=1.0)
        return work(group, parameter)

    with anabranch.local(service) as groups, ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(live, groups))


def push_each(*values: float) -> Callable[[Group, torch.Tensor], list[float]]:
    """Return work that pushes a site's own value for each update, and returns the last model."""

    def work(group: Group, parameter: torch.Tensor) -> list[float]:
        while group.pull():
            group.push([torch.full((2,), values[group.index])], samples=1, loss=1.0)
        return parameter.tolist()

    return work


def test_a_faster_worker_is_told_of_a_larger_batch() -> None:
    def work(group: Group, parameter: torch.Tensor) -> list[int | None]:
        assert group.batch_size is None  # before the first pull
        told = []
        while group.pull():
            told.append(group.batch_size)
            time.sleep((group.batch_size or 0) * (0.002 if group.index else 0.0002))
            group.push([torch.zeros(2)], samples=group.batch_size or 0)
        assert group.batch_size is None
        return told

    load = TunedBatches(most=64)
    told = served(work, pace=R2sp(), load=load, batch_size=8, updates=12)
    assert every(each[0] == 8 for each in told)
    assert told[0][-1] > max(told[1][-1], told[2][-1])
    assert max(told[0]) <= 64


def test_a_worker_is_told_of_the_batch_that_was_stated() -> None:
    def work(group: Group, parameter: torch.Tensor) -> list[int | None]:
        told = []
        while group.pull():
            told.append(group.batch_size)
            group.push([torch.zeros(2)], samples=group.batch_size or 0)
        return told

    load = StatedBatches(samples={NAMES[1]: 3})
    told = served(work, pace=Asp(), load=load, batch_size=8, updates=2)
    assert told == [[8, 8], [3, 3], [8, 8]]


def test_without_a_load_the_program_sizes_its_batches_itself() -> None:
    def work(group: Group, parameter: torch.Tensor) -> list[int | None]:
        told = []
        while group.pull():
            told.append(group.batch_size)
            group.push([torch.zeros(2)])
        return told

    assert served(work, pace=Asp()) == [[None]] * 3


@pytest.mark.parametrize(
    ("merge", "model"),
    [
        (Median(), 1.0 - 2.0),
        (Krum(keep=1), 1.0 - 1.0),
        (Staleness(a=0.5), 1.0 - (1.0 + 2.0 + 99.0) / 3),  # all are as new
    ],
    ids=["median", "krum", "staleness"],
)
def test_a_merge_rule_weighs_the_updates_of_a_step(merge: Any, model: float) -> None:
    found = served(push_each(1.0, 2.0, 99.0), pace=FedAvg(), merge=merge)
    assert every(each == pytest.approx([model] * 2) for each in found)


def test_an_outlier_filter_sees_how_far_updates_agree() -> None:
    def work(group: Group, parameter: torch.Tensor) -> int:
        updates = 0
        while group.pull():
            group.push([torch.full((2,), -1.0 if group.index == 2 else 1.0)])
            updates += 1
        return updates

    merge = OutlierFilter(patience=3)
    *others, barred = served(work, pace=FedAvg(), merge=merge, updates=6)
    assert others == [6, 6]
    assert 3 <= barred < 6  # it may have been let go on before the third was judged


def test_a_rule_that_weighs_by_losses_asks_for_them() -> None:
    def work(group: Group, parameter: torch.Tensor) -> list[float]:
        assert group.pull()
        with pytest.raises(ValueError, match=r"weighs by losses; give push\(\.\.\., loss=\.\.\.\)"):
            group.push([torch.ones(2)])
        group.push([torch.ones(2)], loss=1.0 + 8.0 * group.index)
        assert not group.pull()
        return parameter.tolist()

    fair = served(work, pace=FedAvg(), merge=Fairness(q=1.0, lipschitz=1.0))
    assert fair[0] == fair[1] == fair[2]
    assert 0.0 < fair[0][0] < 1.0  # no update weighs as much as without the rule


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), "a", 10**400])
def test_a_loss_that_is_none_is_refused_and_the_update_can_be_pushed_yet(loss: Any) -> None:
    def work(group: Group, parameter: torch.Tensor) -> list[float]:
        while group.pull():
            with pytest.raises(ValueError, match=r"loss is .*, must be a finite number"):
                group.push([torch.ones(2)], loss=loss)
            group.push([torch.ones(2)], loss=1.0)
        return parameter.tolist()

    found = served(work, pace=FedAvg(), merge=Fairness(q=1.0, lipschitz=1.0))
    assert found[0] == found[1] == found[2]


def test_a_site_may_serve_and_compute_nothing() -> None:
    def work(group: Group, parameter: torch.Tensor) -> int:
        updates = 0
        while group.pull():
            group.push([torch.ones(2)])
            updates += 1
        return updates

    serving = Serving(Serve(only=(NAMES[0],)))
    assert served(work, pace=FedAvg(), serving=serving, updates=3) == [0, 3, 3]


@pytest.mark.parametrize("mixes", ["models", "cache"])
def test_servers_mix_models_where_that_is_asked_for(mixes: Any) -> None:
    serving = Serving(Serve(mixes=mixes))
    found = served(push_each(1.0, 2.0, 6.0), pace=FedAvg(), serving=serving)
    assert every(each == pytest.approx([1.0 - 3.0] * 2) for each in found)


def test_where_servers_mix_models_they_take_no_other_step() -> None:
    service = anabranch.Service(
        OVERLAY, awareness=None, pace=FedAvg(), serving=Serving(Serve(mixes="models"))
    )
    said = pytest.raises(ValueError, match=r"mix models: .* give learning_rate=1\.0")
    with anabranch.local(service) as groups, said:
        groups[0].serve([torch.ones(2)], learning_rate=0.1)


def test_a_worker_computes_its_next_update_while_its_last_is_under_way() -> None:
    found = served(
        push_each(1.0, 1.0, 1.0), pace=Bsp(), serving=Serving(Serve(ahead=True)), updates=4
    )
    assert every(each == [1.0 - 4.0] * 2 for each in found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"merge": Median()}, "merge is of a served model, or of sites that gossip; give a pace"),
        ({"load": TunedBatches(most=9)}, "load is of a served model; give a pace"),
        ({"serving": Serving(Serve(ahead=True))}, "serve is of a served model; give a pace"),
        (
            {"pace": FedAvg(), "serving": Serving(Serve(only=("zz",)))},
            r"serve\.only: there is no site 'zz'; the sites are ",
        ),
        (
            {"pace": FedAvg(), "serving": Serving(Serve(only=tuple(NAMES)))},
            r"serve\.only: it names all sites, so none computes",
        ),
        ({"least_sites": 5}, "least_sites is 5, and there are 3 sites"),
        ({"pace": Bsp(), "merge": Median()}, 'pace.kind = "bsp" adds them up on their way'),
        ({"pace": Asp(), "merge": Median()}, 'pace.kind = "asp" has one in each'),
        (
            {"pace": FedAvg(), "merge": Product(of=(DataSize(), Staleness()))},
            r"merge: product asks how many samples .* push\(weight=\.\.\.\)",
        ),
        (
            {"pace": FedAvg(), "load": TunedBatches(most=8)},
            r"batch_size is 0, must be in 1\.\.8 \(load\.most\)",
        ),
        (
            {"pace": FedAvg(), "load": StatedBatches(samples={"zz": 8}), "batch_size": 4},
            r"load\.samples: there is no site 'zz'",
        ),
        (
            {"pace": FedAvg(), "load": StatedBatches(samples={NAMES[0]: 8})},
            r"load\.samples: it does not name all workers, and batch_size is 0",
        ),
        ({"pace": Asp(), "deal": Adaptive()}, "deal: where the model is served, its chunks stay"),
    ],
)
def test_answers_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    service = anabranch.Service(OVERLAY, awareness=None, **given)
    with pytest.raises(ValueError, match=said), anabranch.local(service):
        pass


def test_the_example_of_the_docs_runs() -> None:
    text = (Path(__file__).parents[2] / "docs/served.md").read_text("utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    told: dict[str, Any] = {}
    exec(example, told)
    first, *others = told["models"]
    assert others
    assert every(torch.equal(first, each) for each in others)
    assert (first - 1).abs().max() < 0.1
