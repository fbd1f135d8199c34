"""R²SP: schedules, clusters, what is trained, and federated clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.fleet import Compute
from anabranch.log.events import Evaluated, StepDone, UpdateCame
from anabranch.pace import Bsp, R2sp, Ssp
from anabranch.train.schedules import InversePower
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from papers import EXPERIMENTS, Lab, Trial
from papers._outcome import fell_s
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as r2sp
from papers.r2sp import _training as training
from papers.r2sp import fig01, fig15, theorem1
from papers.r2sp import fig14 as r2sp_fig14
from papers.r2sp._setting import PACES
from papers.r2sp.fig04 import Algorithm1, worst
from papers.r2sp.fig15 import Trained

from ..every import every
from .told import lab


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_the_promise_of_ssp_is_what_some_schedule_reaches(lead: int):
    pushes = lead + (2 * lead + 1) + 1
    assert worst(Ssp(lead=lead), 2, pushes)[0] == Ssp(lead=lead).staleness_bound(2)


def test_the_papers_example_is_that_of_ssp_if_pushes_wait_too():
    everything = worst(Ssp(lead=1), 3, 8)
    assert everything == worst(Ssp(lead=1), 3, 8, alike=True) == (6, (1, 2, 2, 3, 2, 3, 3, 1))
    assert worst(Ssp(lead=1), 3, 8, lead=1) == (4, (1, 2, 3, 2, 3, 1))


@pytest.mark.parametrize("relaxation", [0.0, 0.8])
def test_nobody_misses_more_than_one_turn_of_each_other_under_r2sp(relaxation: float):
    assert worst(R2sp(relaxation=relaxation), 3, 7)[0] == 2


def test_an_update_that_counts_as_it_comes_may_miss_two_of_each_other_worker():
    assert worst(Algorithm1(), 3, 12) == (4, (1, 1, 2, 2, 3))


def test_schedules_are_as_long_as_asked():
    assert worst(Ssp(lead=1), 3, 2) == (1, (1, 2))
    assert worst(Bsp(), 3, 7)[0] == 0


# --- R²SP's clusters


def test_under_a_barrier_all_share_the_servers_ports(tmp_path: Path):
    overlay = r2sp.cluster(1e9, workers=4, servers=2)
    scenario = r2sp.served(1_000_000, PACES["BSP"], 4, overlay, None, 0)
    (outcome,) = Lab(tmp_path).measure([Trial({}, scenario, overlay)])
    shared_s = 4 * 32e6 / 2 / 1e9
    assert outcome.push_s == pytest.approx(shared_s, rel=0.01)
    assert outcome.pull_s == pytest.approx(shared_s, rel=0.01)
    assert list(outcome.workers) == [f"worker-{k}" for k in range(1, 5)]
    assert r2sp.steady_s([outcome]) == pytest.approx(2 * shared_s, rel=0.01)


def test_emulated_paces_stand_beside_their_simulation(tmp_path: Path):
    emulated = lab(tmp_path, emulate=True)
    rows = EXPERIMENTS["r2sp/fig08"].make(emulated).rows
    assert {trial.overlay.size for trial in emulated.trials} == {5}
    assert every(row.why.startswith("simulated ") for row in rows)


def test_the_loss_has_fallen_once_ten_iterations_of_all_workers_were_below_a_bound():
    def fell(losses: Sequence[float]) -> float | None:
        steps = [
            StepDone(at_s=float(at), site=at % 2, round=1, loss=loss, samples=1, compute_s=0.1)
            for at, loss in enumerate(losses)
        ]
        return fell_s(steps, workers=2, below=0.4)

    low, high = [0.1, 0.5], [0.1, 0.9]  # of two workers; the mean counts
    assert fell(10 * low) == 19.0
    assert fell(9 * low + high + 10 * low) == 39.0
    assert fell(9 * low + high + 9 * low) is None


def test_the_small_model_moves_as_slowly_as_the_large_one():
    cluster = training.Cluster(r2sp.VGG16.elements, Compute(samples_per_s=1.0), window_s=1.0)
    overlay = cluster.overlay()
    port_bps = overlay.sites[0].uplink_bps
    assert port_bps is not None
    assert training.DIGITS.elements / port_bps == pytest.approx(r2sp.VGG16.elements / 10e9)
    alone = cluster.overlay(all_reduces=True)
    assert [site.uplink_bps for site in alone.sites] == 16 * [port_bps]
    assert len(alone.links) == 16 * 15


@pytest.mark.parametrize("learner", [training.ALEXNET_LIKE, training.RESNET_LIKE])
def test_what_is_trained_on_cifar_10_has_a_million_parameters(learner: training.Learner) -> None:
    model = build_model(learner.model, (3, 32, 32), learner.classes, seed=0)
    assert sum(each.numel() for each in model.parameters()) == learner.elements > 1e6


@pytest.mark.parametrize("name", ["BSP", "ASP", "R²SP"])
def test_the_rate_of_theorem_1_falls_with_each_update_and_ours_alike_under_all_paces(
    name: str, tmp_path: Path
) -> None:
    told = lab(tmp_path)
    theorem1.EXPERIMENTS[0].make(told)
    schedules = {
        str(each.labels["name"]): each.scenario.task.schedule
        for each in told.trials
        if isinstance(each.scenario.task, Train)
    }
    updates = 1 if name == "BSP" else 16
    assert schedules[f"{name}, k^(-3/4)"] == InversePower(power=0.75)
    ours = schedules[f"{name}, (1 + k / 20 iterations)^(-3/4) (ours)"]
    assert ours.factor(20 * updates) == pytest.approx(2**-0.75)


def test_under_bsp_workers_share_a_port_that_is_idle_for_half_of_the_time_beside_computing():
    small = replace(r2sp.VGG16, elements=20_000_000, iteration_s=2.0, blocked_s=1.5)
    job = fig01.Watch(small, PACES["BSP"], 640e6 * 4 / 0.75, 4, 1, from_s=4.0)
    seen = fig01.watch(job)
    assert seen.idle == pytest.approx((0.625, 0.625), abs=0.08)
    assert seen.share == pytest.approx((0.25, 0.25), abs=0.05)
    seconds = [point[0] for point in seen.traces[0]]
    assert len(seconds) == 100
    assert seconds[-1] == pytest.approx(20.0)


def test_training_has_converged_when_no_evaluation_of_ten_rounds_was_a_new_best() -> None:
    def converged(accuracies: Sequence[float], a_round: int = 1) -> float | None:
        looks = tuple(
            fig15.Look(float(at), at / a_round, accuracy) for at, accuracy in enumerate(accuracies)
        )
        end = Trained(looks, 0, 0, (None, None)).converged()
        return None if end is None else end.rounds

    assert converged([0.1, 0.5, *9 * [0.4]]) is None
    assert converged([0.1, 0.5, *10 * [0.5], 0.9]) == 11
    assert converged([0.1, 0.5, *9 * [0.4], 0.6, *10 * [0.2]]) == 21
    # Rounds count, however often there are looks.
    assert converged([0.1, 0.5, *19 * [0.4]], a_round=2) is None
    assert converged([0.1, 0.5, *20 * [0.4]], a_round=2) == 10.5


def test_a_look_has_the_rounds_of_clients_that_are_never_barred() -> None:
    def came(site: int, update: int) -> UpdateCame:
        return UpdateCame(at_s=1.0, site=site, update=update)

    def looked(at_s: float) -> Evaluated:
        return Evaluated(at_s=at_s, site=0, round=0, accuracy=0.5)

    events = [*(came(site, 1) for site in range(4)), looked(2.0)]
    # Two of four are barred: a look after as many updates as there are clients is no round.
    events += [came(0, 2), came(1, 2), looked(3.0), came(0, 3), came(1, 3), looked(4.0)]
    looks = fig15._looks(events, {0, 1})
    assert [each.rounds for each in looks] == [1, 2, 3]
    trained = Trained(looks, 2, 2, (None, None))
    assert trained.curve(2) == [(2.0, 0.5), (3.0, 0.5)]


def test_an_accuracy_is_the_mean_of_the_looks_in_the_last_ten_rounds() -> None:
    looks = tuple(fig15.Look(float(at), at / 2, at / 100) for at in range(1, 61))
    trained = Trained(looks, 0, 0, (None, None))
    assert trained.after(20) == pytest.approx(sum(range(21, 41)) / 20 / 100)
    assert trained.after(100) == pytest.approx(sum(range(41, 61)) / 20 / 100)


def test_the_papers_groups_wait_for_their_fraction_and_ours_do_not() -> None:
    schemes = fig15.schemes(8)
    literal = {each.under for name, each in schemes.items() if name.startswith(("BSP", "FL-R²SP"))}
    ours = schemes["FL-R²SP, ours"].under
    assert {each.late_after for each in literal - {ours}} == {"never"}
    assert ours.late_after == 3.0


def test_a_picture_of_clients_has_each_in_one_phase() -> None:
    case = federated.Case(federated.CNN, federated.PROGRAM_5, federated.pace(2), clients=8)
    seen = federated.observe(case, draws=True)
    assert len(seen.phases) == 100
    assert every(7 <= sum(counts) <= 8 for _, *counts in seen.phases)
    assert federated.observe(case) == replace(seen, phases=(), uplink=())


@pytest.mark.parametrize("learner", [training.DIGITS, r2sp_fig14.T5, r2sp_fig14.BERT])
def test_what_is_trained_in_a_models_place_has_the_size_and_answers_that_are_told(
    learner: training.Learner,
) -> None:
    task = load_task(learner.data)
    model = build_model(
        learner.model,
        task.shape,
        task.classes,
        seed=0,
        hidden=learner.hidden or None,
        vocabulary=task.vocabulary,
    )
    assert sum(each.numel() for each in model.parameters()) == learner.elements
    assert task.classes == learner.classes
    assert learner.looked_at is None or learner.looked_at <= len(task.held_out_labels)


def test_workers_may_have_narrower_ports(tmp_path: Path):
    overlay = r2sp.cluster(1e9, workers=2, servers=1, worker_bps=1e8)
    scenario = r2sp.served(100_000, PACES["BSP"], 3, overlay, None, 0)
    (outcome,) = Lab(tmp_path).measure([Trial({}, scenario, overlay)])
    assert outcome.push_s == pytest.approx(3.2e6 / 1e8, rel=0.02)


@pytest.mark.parametrize("model", r2sp.MODELS, ids=lambda each: each.name)
def test_servers_hold_equal_parts_of_a_model(model: r2sp.Model):
    overlay = r2sp.cluster(servers=2)
    scenario = r2sp.served(model.elements, PACES["BSP"], 1, overlay, None, 0)
    assert scenario.chunk_elements is not None
    chunks = -(-model.elements // scenario.chunk_elements)
    assert chunks % 2 == 0
    assert scenario.chunk_elements <= r2sp.CHUNK_ELEMENTS
