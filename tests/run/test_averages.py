"""Sites that make local steps and average their models: in simulation, and as processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from anabranch.fleet import Compute
from anabranch.log import RunSummary, read_events, summarise
from anabranch.log.events import Evaluated, StepDone
from anabranch.overlay import dumps, random_complete
from anabranch.period import Adaptive, AnyPeriod, Every, EveryStep, Moved
from anabranch.train.averaging import Average, Outer
from anabranch_lab.run.checkpoints import checkpoints_of, find, weights_of
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import Scenario, ScenarioError, loads
from anabranch_lab.run.simulate import simulate

SITES = random_complete(3, 0, low_bps=50e6, high_bps=100e6, latency_s=0.001)
TEXT = """
overlay = "unused"
route = {kind = "balanced", arity = 1}
%s
[stop]
rounds = %d
[task]
kind = "train"
data = "digits"
model = "softmax"
learning_rate = 0.3
batch_size = 8
evaluate_every = 4
[compute]
samples_per_s = 1000
jitter = {kind = "lognormal", cv = 0.3}
"""


def scenario(more: str, rounds: int = 6) -> Scenario:
    return loads(TEXT % (more, rounds))


def weights(log: Path) -> np.ndarray:
    held = load_file(weights_of(log))
    return np.concatenate([held[name].ravel() for name in sorted(held)])


def run(more: str, log: Path, rounds: int = 6) -> tuple[RunSummary, np.ndarray]:
    simulate(scenario(more, rounds), SITES, log)
    done = summarise(event for _, event in read_events(log))
    assert done.error is None
    return done, weights(log)


def test_averages_of_plain_sgds_models_are_those_of_gradients(tmp_path: Path) -> None:
    _, by_gradients = run("", tmp_path / "a.db")
    done, by_models = run('period = {kind = "every", steps = 1}', tmp_path / "b.db")
    assert done.checksums_agree
    assert np.allclose(by_gradients, by_models, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ('period = {kind = "every", steps = 4}', 4),
        ('period = {kind = "every", steps = 4}\naverage = {delay = 4}', 4),
        ('period = {kind = "every", steps = 4}\naverage = {fragments = 2}', 2),
        ('period = {kind = "every", steps = 4}\naverage = {outer = {}}', 4),
        ('period = {kind = "every", steps = 4}\naverage = {wire = "bfloat16"}', 4),
        ('period = {kind = "every", steps = 4}\naverage = {wire = "int4"}', 4),
        ('period = {kind = "every", steps = 4}\naverage = {wire = "top2", fragments = 2}', 2),
        (
            'period = {kind = "every", steps = 4}\n'
            "average = {outer = {nesterov = false}, delay = 1, fragments = 4}",
            1,
        ),
    ],
)
def test_sites_make_the_periods_steps_and_end_with_one_model(
    more: str, steps: int, tmp_path: Path
) -> None:
    done, held = run(more, tmp_path / "run.db")
    assert len(done.rounds) == 6
    assert done.checked_rounds == 6
    assert done.checksums_agree
    assert np.isfinite(held).all()
    events = [event for _, event in read_events(tmp_path / "run.db")]
    made = [each for each in events if isinstance(each, StepDone)]
    for site in range(3):
        assert sum(each.site == site for each in made) == 6 * steps
    last = {each.site: each for each in events if isinstance(each, Evaluated)}
    (alike,) = {each.accuracy for each in last.values()}
    assert alike == pytest.approx(done.final_accuracy)
    assert {each.step for each in last.values()} == {6 * steps}


def test_a_site_whose_model_has_moved_calls_the_others(tmp_path: Path) -> None:
    # One site computes four times as slowly: the others are at their next steps when it calls.
    slow = '\nfault = [{kind = "slow", site = "site2", factor = 4.0, at_s = 0.0}]'
    done, _ = run('period = {kind = "moved", by = 0.3, most_steps = 50}' + slow, tmp_path / "a.db")
    by_site = [0, 0, 0]
    for step in done.steps:
        by_site[step.site] += 1
    assert done.checksums_agree
    assert by_site[2] < by_site[0]
    assert max(by_site) < 6 * 50, "no site called the others"


def test_a_delay_hides_the_exchange(tmp_path: Path) -> None:
    period = 'period = {kind = "every", steps = 4}'
    after, _ = run(period, tmp_path / "a.db")
    beside, _ = run(period + "\naverage = {delay = 2}", tmp_path / "b.db")
    assert beside.total_s < after.total_s


@pytest.mark.parametrize(
    "more",
    [
        'period = {kind = "every", steps = 3}',
        'period = {kind = "every", steps = 4}\naverage = {outer = {}, fragments = 2}',
        'period = {kind = "moved", by = 0.2, most_steps = 7}',
        'period = {kind = "every", steps = 3}\naverage = {delay = 2}',
        'period = {kind = "every", steps = 3}\naverage = {outer = {}, wire = "int2"}',
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(more: str, tmp_path: Path) -> None:
    whole, again = tmp_path / "whole.db", tmp_path / "again.db"
    simulate(scenario(more), SITES, whole, save_every=2)
    folder = find(checkpoints_of(whole).joinpath("round-000004"))
    simulate(scenario(more), SITES, again, save_every=2, resume=folder)
    assert np.array_equal(weights(whole), weights(again))


def test_a_resumed_run_whose_period_goes_by_times_does_so_where_times_are_the_same(
    tmp_path: Path,
) -> None:
    # Jitter is drawn anew by a run that goes on, and would lead to other periods.
    adaptive = scenario('period = {kind = "adaptive", first_steps = 2, gain = 9.0}')
    steady = msgspec.structs.replace(adaptive, compute=Compute(samples_per_s=1000))
    whole, again = tmp_path / "whole.db", tmp_path / "again.db"
    simulate(steady, SITES, whole, save_every=2)
    folder = find(checkpoints_of(whole).joinpath("round-000004"))
    simulate(steady, SITES, again, save_every=2, resume=folder)
    assert np.array_equal(weights(whole), weights(again))


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "int4", "top2"])
def test_processes_average_as_the_simulation_does(wire: str, tmp_path: Path) -> None:
    average = f'{{outer = {{}}, fragments = 2, wire = "{wire}"}}'
    more = f'period = {{kind = "every", steps = 4}}\naverage = {average}'
    _, simulated = run(more, tmp_path / "a.db")
    path = tmp_path / "scenario.toml"
    (tmp_path / "overlay.toml").write_text(dumps(SITES))
    path.write_text((TEXT % (more, 6)).replace('"unused"', '"overlay.toml"'))
    run_locally(path, 0, SITES, tmp_path / "b.db")
    done = summarise(event for _, event in read_events(tmp_path / "b.db"))
    assert done.checksums_agree
    assert np.array_equal(simulated, weights(tmp_path / "b.db"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("average = {delay = 2}", "average: gradients are exchanged in every step"),
        ('period = {kind = "moved", by = 0.1}\npace = {kind = "asp"}', "period.kind: "),
        (
            'period = {kind = "every", steps = 4}\naverage = {delay = 2}\npace = {kind = "asp"}',
            "average: where the model is served, steps wait for the whole model",
        ),
        (
            'period = {kind = "every", steps = 4}\naverage = {fragments = 3}',
            "average.fragments: each of 3 fragments",
        ),
        (
            'period = {kind = "every", steps = 4}\naverage = {delay = 5}',
            "average.delay: averages begin every 4 steps",
        ),
        (
            'period = {kind = "moved", by = 0.1}\nsimulation = {tensors = "sizes"}',
            'period.kind: "moved" goes by how far models move',
        ),
        (
            'period = {kind = "adaptive"}\naverage = {wire = "int4"}',
            "average.wire: an adaptive period shares measurements",
        ),
        (
            'period = {kind = "every", steps = 2}\naverage.wire = "int4"\npace = {kind = "asp"}',
            "average.wire: int4 is for averages by all-reduce",
        ),
        (
            'period = {kind = "every", steps = 4}\naverage = {wire = "int3"}',
            "average.wire",
        ),
        (
            'period = {kind = "adaptive"}\ngossip = {}',
            'period.kind: "adaptive" goes by what all sites have measured',
        ),
    ],
)
def test_what_cannot_be_is_an_error_that_names_the_key(more: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said.replace("{", r"\{")):
        scenario(more)


def test_every_period_has_its_place_in_a_scenario() -> None:
    known: list[AnyPeriod] = [EveryStep(), Every(steps=2), Moved(by=0.1), Adaptive()]
    for period in known:
        assert (
            scenario(
                f'period = {{kind = "{type(period).__struct_config__.tag}"'
                + (", steps = 2" if isinstance(period, Every) else "")
                + (", by = 0.1" if isinstance(period, Moved) else "")
                + "}"
            ).period
            == period
        )
    assert scenario('period = {kind = "every", steps = 2}\naverage = {outer = {}}').average == (
        Average(outer=Outer())
    )


@pytest.mark.parametrize("average", ["", "\naverage = {delay = 2}"])
def test_all_have_the_last_averages_model_where_a_run_is_stopped(
    average: str, tmp_path: Path
) -> None:
    more = (
        f'stop = {{rounds = 200, after_s = 0.3}}\nperiod = {{kind = "every", steps = 4}}{average}'
    )
    text = (TEXT % (more, 1)).replace("[stop]\nrounds = 1\n", "")
    simulate(loads(text), SITES, tmp_path / "a.db")
    done = summarise(event for _, event in read_events(tmp_path / "a.db"))
    last = {event.site: event.accuracy for event in done.evaluated}
    assert len({*last.values()}) == 1


def test_a_simulation_without_numbers_sends_as_many_bytes(tmp_path: Path) -> None:
    rounds_s = []
    for wire in ("float32", "int4"):
        for tensors in ("real", "sizes"):
            more = (
                f'period = {{kind = "every", steps = 4}}\naverage = {{wire = "{wire}"}}\n'
                f'simulation = {{tensors = "{tensors}"}}'
            )
            log = tmp_path / f"{wire}-{tensors}.db"
            made = loads((TEXT % (more, 3)).replace("evaluate_every = 4\n", ""))
            simulate(made, random_complete(3, 0, low_bps=1e5, high_bps=2e5), log)
            rounds_s.append(summarise(event for _, event in read_events(log)).total_s)
    whole_s, sized_s, few_s, few_sized_s = rounds_s
    assert sized_s == pytest.approx(whole_s, rel=0.02)
    assert few_sized_s == pytest.approx(few_s, rel=0.02)
    assert few_s < 0.4 * whole_s
