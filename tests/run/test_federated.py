"""Federated runs, in both worlds: what they learn, who counts, and that they end."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from anabranch.log import (
    Evaluated,
    Event,
    FaultInjected,
    ProceedAsked,
    RunEnded,
    SiteLost,
    StepDone,
    UpdateApplied,
    UpdateDiscarded,
    UpdateJudged,
    WorkerWent,
    fingerprint,
    read_events,
)
from anabranch.log.events import ClientBarred, ClientReadmitted
from anabranch.overlay import load as load_overlay
from anabranch.train.optimisers import Sgd
from anabranch_lab.run.checkpoints import weights_of
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.replay import replay
from anabranch_lab.run.scenario import ScenarioError, loads
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.partition import Quantity, partition_evenly
from anabranch_lab.tasks.train import Trainer

from ..every import every
from ..seeds import seeds, slow_after
from .federated_worlds import check_barred, live
from .test_served import hub, write_overlay

Floats = npt.NDArray[np.float32]

CLIENTS = 4
STEPS, BATCH, RATE = 3, 8, 0.2


def scenario(pace: str, more: str = "", serve: str = "", clients: int = CLIENTS) -> str:
    return (
        'overlay = "hub.toml"\nroute = {kind = "star", hub = "server"}\n'
        f'pace = {pace}\nserve = {{only = ["server"]{serve}}}\nseed = 5\n'
        f'period = {{kind = "every", steps = {STEPS}}}\nchunk_elements = 300\n{more}\n'
        + ("" if "stop" in more else "stop = {rounds = 4}\n")
        + ("" if "compute" in more else "compute = {samples_per_s = 50, gini = 0.1}\n")
        + ("" if "task" in more else _task())
    )


def _task(more: str = "") -> str:
    return (
        f'task = {{kind = "train", data = "digits", model = "softmax", learning_rate = {RATE}, '
        f"batch_size = {BATCH}{more}}}\n"
    )


def simulated(text: str, folder: Path, clients: int = CLIENTS) -> list[Event]:
    """Simulate, and replay: a fresh pace decides alike."""
    hub(folder, "server", names(clients), 1e6)
    path, log = folder / "scenario.toml", folder / "run.db"
    path.write_text(text)
    simulate(*load_scenario(path), log)
    replay(read_events(log))
    return [event for _, event in read_events(log)]


def names(clients: int) -> list[str]:
    return [f"c{number:02}" for number in range(clients)]


def check(happened: list[Event]) -> None:
    """Each update that was asked for is settled once, and no other."""
    asked = [(e.site, e.update) for e in happened if isinstance(e, WorkerWent)]
    settled = [
        (e.site, e.update) for e in happened if isinstance(e, UpdateApplied | UpdateDiscarded)
    ]
    assert len(set(asked)) == len(asked)
    assert len(set(settled)) == len(settled)
    assert set(settled) <= set(asked)
    check_barred(happened)


class Client:
    """A client by hand: its samples are drawn as the run's are."""

    def __init__(self, site: int, sites: int) -> None:
        data = load_task("digits", None)
        shard = partition_evenly(len(data.train_labels), sites - 1, 5)[site]  # none for the server
        model = build_model("softmax", data.shape, data.classes, 5, hidden=None, vocabulary=None)
        self._trainer = Trainer(data, model, shard, Sgd(RATE), BATCH, seed=5 * sites + site)
        self.parameters = self._trainer.flat.parameters

    def goes_to(self, model: Floats, steps: int = STEPS) -> Floats:
        """Return where some steps from a model lead."""
        self.parameters[:] = model
        for _ in range(steps):
            self._trainer.compute_gradients()
            self._trainer.update()
        return self.parameters.copy()


def by_hand(clients: int = CLIENTS) -> tuple[list[Client], Floats]:
    made = [Client(site, clients + 1) for site in range(clients)]
    return made, made[0].parameters.copy()


def final(folder: Path) -> Floats:
    from safetensors.numpy import load_file

    weights = load_file(weights_of(folder / "run.db"))
    data = load_task("digits", None)
    model = build_model("softmax", data.shape, data.classes, 5, hidden=None, vocabulary=None)
    return np.concatenate([weights[name].ravel() for name, _ in model.named_parameters()])


@pytest.mark.parametrize("mixes", slow_after(1, ["updates", "models", "cache"]))
def test_rounds_of_all_are_means_of_models(mixes: str, tmp_path: Path) -> None:
    simulated(scenario('{kind = "fedavg"}', serve=f', mixes = "{mixes}"'), tmp_path)
    clients, model = by_hand()
    for _ in range(4):
        model = np.mean([client.goes_to(model) for client in clients], axis=0)
    np.testing.assert_allclose(final(tmp_path), model, atol=2e-6)


@pytest.mark.slow
def test_local_epochs_are_as_many_steps_as_there_are_samples_for(tmp_path: Path) -> None:
    epochs = '{kind = "every-epoch", epochs = 2}'
    text = scenario('{kind = "fedavg"}').replace(f'{{kind = "every", steps = {STEPS}}}', epochs)
    happened = simulated(text, tmp_path)
    clients, model = by_hand()
    steps = math.ceil(2 * 359 / BATCH)  # of 1437 samples, which four clients share
    assert steps == math.ceil(2 * 360 / BATCH)
    assert {e.samples for e in happened if isinstance(e, StepDone)} == {steps * BATCH}
    for _ in range(4):
        model = np.mean([client.goes_to(model, steps) for client in clients], axis=0)
    np.testing.assert_allclose(final(tmp_path), model, atol=1e-5)


def test_each_registered_client_makes_the_steps_of_its_own_samples(tmp_path: Path) -> None:
    more = "clients = {registered = 9}\nstop = {rounds = 9}\n"
    more += _task(', partition = {kind = "quantity", alpha = 2.0}')
    text = scenario('{kind = "asp"}', more)
    text = text.replace(f'{{kind = "every", steps = {STEPS}}}', '{kind = "every-epoch"}')
    happened = simulated(text, tmp_path)
    who = {(e.site, e.update): e.client for e in happened if isinstance(e, WorkerWent)}
    made: dict[int | None, set[int]] = {}
    for each in happened:
        if isinstance(each, StepDone):
            made.setdefault(who[each.site, each.round], set()).add(each.samples)
    labels = load_task("digits", None).train_labels.numpy()
    held = [len(shard) for shard in Quantity(alpha=2.0).deal(labels, 9, 5, BATCH)]
    assert len(made) == 9
    assert made == {client: {math.ceil(held[client] / BATCH) * BATCH} for client in range(9)}


@pytest.mark.parametrize("mixes", ["updates", "models"])
def test_groups_in_turn_are_algorithm_2(mixes: str, tmp_path: Path) -> None:
    text = scenario('{kind = "fl-r2sp", groups = 2, fraction = 0.5}', serve=f', mixes = "{mixes}"')
    happened = simulated(text, tmp_path)
    check(happened)
    assert any(isinstance(event, UpdateDiscarded) for event in happened)
    clients, model = by_hand()
    went_to: dict[tuple[int, int], tuple[Floats, Floats]] = {}
    steps: dict[int, list[tuple[int, int]]] = {}
    for event in happened:
        if isinstance(event, UpdateApplied):
            steps.setdefault(event.version, []).append((event.site, event.update))
    version = 0
    for event in happened:
        if isinstance(event, UpdateApplied) and event.version > version:
            version = event.version
            group = [went_to[each] for each in steps[version]]
            assert len(group) == 1  # half of two
            if mixes == "models":
                model = model / 2 + np.mean([there for _, there in group], axis=0) / 2
            else:
                model = model + np.mean([there - pulled for pulled, there in group], axis=0) / 2
        elif isinstance(event, WorkerWent):
            there = clients[event.site].goes_to(model)
            went_to[event.site, event.update] = model, there
    np.testing.assert_allclose(final(tmp_path), model, atol=3e-6)


def test_fedasync_goes_to_each_model_as_it_comes(tmp_path: Path) -> None:
    text = scenario('{kind = "asp", share = 0.6}', serve=', mixes = "models"')
    happened = simulated(text, tmp_path)
    clients, model = by_hand()
    there: dict[tuple[int, int], Floats] = {}
    for event in happened:
        if isinstance(event, UpdateApplied):
            model = np.float32(0.4) * model + np.float32(0.6) * there[event.site, event.update]
        elif isinstance(event, WorkerWent):
            there[event.site, event.update] = clients[event.site].goes_to(model)
    np.testing.assert_allclose(final(tmp_path), model, atol=3e-6)


def test_an_outer_optimiser_is_the_servers(tmp_path: Path) -> None:
    more = "average = {outer = {learning_rate = 0.5, momentum = 0.9, nesterov = false}}"
    simulated(scenario('{kind = "fedavg"}', more), tmp_path)
    clients, model = by_hand()
    velocity = np.zeros_like(model)
    for _ in range(4):
        mean = np.mean([model - client.goes_to(model) for client in clients], axis=0)
        velocity = 0.9 * velocity + mean
        model = (model - 0.5 * velocity).astype(np.float32)
    np.testing.assert_allclose(final(tmp_path), model, atol=5e-6)


PACES = [
    '{kind = "fl-r2sp", groups = 2}',
    '{kind = "fl-r2sp", groups = 3, grouping = "delay", collects = "turn", give_up_after = 1}',
    '{kind = "fedavg", sample = 0.5, fraction = 0.75, give_up_after = 1}',
    '{kind = "fedbuff", size = 3}',
    '{kind = "asp", share = 0.5}',
    '{kind = "safa", fraction = 0.5, lag_tolerance = 1}',
    '{kind = "r2sp"}',
]
LITERALLY = '{kind = "fl-r2sp", groups = 2, late_after = "never"}'
MERGES = [
    'merge = {kind = "outlier-filter", beta = 0.6, patience = 1, ends_after = 3, most = 0.5}',
    'merge = {kind = "product", of = [{kind = "data-size"}, {kind = "outlier-filter"}, '
    '{kind = "staleness", a = 0.5}]}',
    'merge = {kind = "median"}',
    'merge = {kind = "krum", keep = 2}',
]


@pytest.mark.parametrize("mixes", ["updates", "models", "cache"])
@pytest.mark.parametrize("pace", PACES)
def test_every_scheme_ends_replays_and_is_the_same_again(
    pace: str, mixes: str, tmp_path: Path
) -> None:
    merges = MERGES[:2] if mixes == "cache" else MERGES
    if '"asp"' in pace or '"r2sp"' in pace:  # one update a step: there is nothing to hold it to
        merges = ['merge = {kind = "staleness", a = 0.5}', 'merge = {kind = "data-size"}']
    merge = merges[(PACES.index(pace) + len(mixes)) % len(merges)]
    if "data-size" in merge:
        merge += (
            '\ntask = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.2, '
        )
        merge += 'batch_size = 8, partition = {kind = "dirichlet", alpha = 1.0}}\n'
    text = scenario(pace, merge, f', mixes = "{mixes}"')
    happened = simulated(text, tmp_path)
    check(happened)
    if mixes == "cache":
        (tmp_path / "again").mkdir()
        simulated(text, tmp_path / "again")
        assert fingerprint(tmp_path / "again" / "run.db") == fingerprint(tmp_path / "run.db")
    accuracy = [event.accuracy for event in happened if isinstance(event, Evaluated)]
    assert mixes == "cache" or accuracy[-1] > 0.3


def test_an_outlier_is_barred_and_let_in_again(tmp_path: Path) -> None:
    """One of five holds other labels: shards of two labels each, of which it is the odd one."""
    more = (
        'merge = {kind = "outlier-filter", beta = 0.55, patience = 2, ends_after = 6, most = 0.4}\n'
        "stop = {rounds = 30}\n"
        'task = {kind = "train", data = "digits", model = "softmax", learning_rate = 0.2, '
        'batch_size = 8, partition = {kind = "dirichlet", alpha = 0.3}}\n'
    )
    happened = simulated(scenario('{kind = "fedavg"}', more, clients=5), tmp_path, 5)
    check(happened)
    barred: set[int] = set()
    below: Counter[int] = Counter()
    times = 0
    for event in happened:
        if isinstance(event, UpdateJudged):
            below[event.site] = below[event.site] + 1 if event.cosine < 0.55 else 0
        elif isinstance(event, ClientBarred):
            assert below[event.client] >= 2
            barred.add(event.client)
            assert len(barred) <= 2
            times += 1
        elif isinstance(event, ClientReadmitted):
            barred.remove(event.client)
            below[event.client] = 0
        elif isinstance(event, WorkerWent | UpdateApplied):
            assert event.site not in barred
    assert times > 1
    assert any(isinstance(event, ClientReadmitted) for event in happened)


FAULTS = [
    '{kind = "kill", site = "c01", at_s = 1.2}',
    '{kind = "kill", site = "c01", at_s = 1.2, for_s = 2}',
    '{kind = "pause", site = "c02", at_s = 0.7, for_s = 5}',
    '{kind = "cut", link = ["c03", "server"], at_s = 0.7, for_s = 3}',
    '{kind = "disconnect", site = "c00", at_s = 1.0, for_s = 0.5}',
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("pace", [*PACES[:4], LITERALLY])
def test_what_befalls_one_client_does_not_stop_the_others(
    pace: str, fault: str, tmp_path: Path
) -> None:
    merge = MERGES[len(fault) % 2 * 2]
    happened = simulated(scenario(pace, f"{merge}\nfault = [{fault}]"), tmp_path)
    check(happened)
    assert any(isinstance(event, FaultInjected) for event in happened)
    ends = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    barred = {e.client for e in happened if isinstance(e, ClientBarred)}
    barred -= {e.client for e in happened if isinstance(e, ClientReadmitted)}
    others = {site for site in range(CLIENTS) if names(CLIENTS)[site] not in fault} - barred
    assert every(ends[site] == 4 for site in others)
    assert len(others) > 1


@seeds(10, 24)
def test_clients_that_come_go_and_vanish_never_stop_a_run(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(1, 7))
    pace = [
        f'{{kind = "fl-r2sp", groups = {rng.integers(1, 5)}, fraction = {rng.uniform(0.1, 1):.3f}, '
        f'relaxation = {rng.uniform():.2f}, grouping = "index", '
        f'collects = "{rng.choice(["fraction", "turn"])}", regroup_every = {rng.integers(1, 4)}, '
        f"give_up_after = {rng.integers(1, 3)}, deadline_s = {rng.uniform(0.2, 9):.2f}}}",
        f'{{kind = "fedavg", sample = {rng.uniform(0.1, 1):.3f}, seed = {rng.integers(99)}, '
        f"fraction = {rng.uniform(0.1, 1):.3f}, give_up_after = {rng.integers(1, 3)}, "
        f"deadline_s = {rng.uniform(0.2, 9):.2f}}}",
    ][int(rng.integers(2))]
    more = (
        'task = {kind = "exchange", elements = 1000, batch_size = 8}\n'
        "stop = {rounds = 6}\n"
        f"clients = {{registered = {workers + rng.integers(1, 20)}, vanish = "
        f"{rng.uniform(0, 0.4):.2f}, away = {{awake_s = {rng.uniform(1, 9):.1f}, asleep_s = "
        f"{rng.uniform(1, 9):.1f}}}}}\n"
        'compute = {samples_per_s = 50, gini = 0.2, added_delay = {kind = "lognormal", mu = -2, '
        "sigma = 1.5}}\n"
    )
    if rng.random() < 0.5:
        fault = FAULTS[int(rng.integers(3))].replace("c01", "c00").replace("c02", "c00")
        more += f"fault = [{fault}]\n" if workers > 1 else ""
    happened = simulated(scenario(pace, more), tmp_path, workers)
    check(happened)
    assert len(happened) < 200 * workers + 2000
    went = [event for event in happened if isinstance(event, WorkerWent)]
    assert every(event.client is not None for event in went)
    lost = {event.site for event in happened if isinstance(event, SiteLost)}
    made = Counter(event.site for event in went)
    assert every(made[site] == 6 for site in range(workers) if site not in lost)


def test_clients_may_be_fewer_than_sites_and_each_has_its_own_speed(tmp_path: Path) -> None:
    """Four sites, two of which compute; three clients are registered."""
    write_overlay(tmp_path, "hub", [("server", "a"), ("server", "b"), ("server", "z")], 1e8)
    (tmp_path / "scenario.toml").write_text(
        'overlay = "hub.toml"\nroute = {kind = "star", hub = "server"}\n'
        'clients = {registered = 3}\nserve = {only = ["server", "z"]}\npace = {kind = "asp"}\n'
        "stop = {rounds = 40}\n"
        'task = {kind = "exchange", elements = 10, batch_size = 8}\n[compute]\nsamples_per_s = 80\n'
        "[compute.sites.client-1]\nslowdowns = {starts_s = [0, 1.5], factors = [10, 0.5]}\n"
    )
    simulate(*load_scenario(tmp_path / "scenario.toml"), tmp_path / "run.db")
    since: dict[int, WorkerWent] = {}
    took_s: dict[int | None, set[float]] = {}
    for _, event in read_events(tmp_path / "run.db"):
        if isinstance(event, WorkerWent):
            since[event.site] = event
        elif isinstance(event, ProceedAsked):
            began = since[event.site]
            took_s.setdefault(began.client, set()).add(round(event.at_s - began.at_s, 2))
    assert took_s[0] == took_s[2] == {0.1}
    assert {1.0, 0.05} <= took_s[1]  # whichever worker stands for it


def test_a_client_computes_one_update_at_a_time(tmp_path: Path) -> None:
    more = "clients = {registered = 6}\nstop = {rounds = 20}\n"
    happened = simulated(scenario('{kind = "fedbuff", size = 2}', more), tmp_path)
    busy: dict[tuple[int, int], int] = {}
    seen = Counter[int]()
    for event in happened:
        if isinstance(event, WorkerWent):
            assert event.client is not None
            assert event.client not in busy.values()
            busy[event.site, event.update] = event.client
            seen[event.client] += 1
        elif isinstance(event, UpdateApplied | UpdateDiscarded):
            del busy[event.site, event.update]
    assert set(seen) == set(range(6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            scenario('{kind = "bsp"}', 'merge = {kind = "median"}'),
            'merge.kind: "median" looks at updates one by one, and pace.kind = "bsp" adds them up',
        ),
        (
            scenario('{kind = "asp"}', serve=', ahead = true, mixes = "models"'),
            "serve.mixes: models has to know the model that an update was computed on",
        ),
        (
            scenario('{kind = "safa"}', 'merge = {kind = "krum"}', ', mixes = "cache"'),
            'serve.mixes: a cache is the mean of all workers\' last models, and merge.kind: "krum"',
        ),
        (
            scenario('{kind = "fedavg"}', "clients = {registered = 9, vanish = 0.1}"),
            "clients.vanish: rounds would wait for ever for clients that vanish; give "
            "pace.give_up_after",
        ),
        (
            scenario('{kind = "asp"}', 'merge = {kind = "median"}'),
            'merge.kind: "median" holds the updates of a step against each other',
        ),
        (
            scenario('{kind = "safa"}', "clients = {registered = 9}", ', mixes = "cache"'),
            "serve.mixes: a cache has the last model of each worker",
        ),
        (
            scenario('{kind = "fl-r2sp", grouping = "delay"}', "clients = {registered = 9}"),
            "pace.grouping: delays are of workers",
        ),
        (
            scenario('{kind = "bsp"}', "clients = {registered = 9}"),
            "clients: they push to a model that is served",
        ),
        (
            scenario(
                '{kind = "fedavg"}',
                'merge = {kind = "outlier-filter"}\nsimulation = {tensors = "sizes"}',
            ),
            'merge.kind: "outlier-filter" looks at numbers, and there are none',
        ),
        (
            scenario('{kind = "fedavg"}', 'task = {kind = "exchange", elements = 9}').replace(
                f'"every", steps = {STEPS}', '"every-epoch"'
            ),
            'period.kind: "every-epoch" counts the samples that a site has',
        ),
        (
            'overlay = "hub.toml"\nroute = {kind = "packed"}\nperiod = {kind = "every-epoch"}\n'
            f"stop = {{rounds = 3}}\n{_task()}",
            'period.kind: "every-epoch" has each site make as many steps as its samples take',
        ),
        (
            scenario('{kind = "fedavg"}', "average = {fragments = 2}"),
            "average: where the model is served, steps wait for the whole model",
        ),
    ],
)
def test_what_cannot_be_is_an_error_that_names_the_key(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        loads(text, "here")
    assert said in str(error.value)


def test_registered_clients_are_more_than_workers(tmp_path: Path) -> None:
    text = scenario('{kind = "fedavg"}', f"clients = {{registered = {CLIENTS}}}")
    with pytest.raises(ScenarioError, match=r"clients.registered: 4 for 4 workers"):
        simulated(text, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_sixteen_processes_take_turns_while_one_is_killed_and_one_sleeps(tmp_path: Path) -> None:
    clients = 16
    more = (
        'merge = {kind = "outlier-filter", beta = -0.5}\nstop = {rounds = 8}\n'
        "compute = {samples_per_s = 60}\n"
        'fault = [{kind = "kill", site = "c03", at_s = 1.5}, '
        '{kind = "pause", site = "c05", at_s = 1.5, for_s = 3.0}]\n'
    )
    text = scenario('{kind = "fl-r2sp", groups = 4}', more, ', mixes = "models"')
    hub(tmp_path, "server", names(clients), 1e8)
    (tmp_path / "scenario.toml").write_text(text)
    overlay = load_overlay(str(tmp_path / "hub.toml"))
    run_locally(tmp_path / "scenario.toml", 0, overlay, tmp_path / "run.db")
    replay(read_events(tmp_path / "run.db"))
    happened = [event for _, event in read_events(tmp_path / "run.db")]
    check(happened)
    assert [event.site for event in happened if isinstance(event, SiteLost)] == [3]
    made = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert {made[site] for site in range(clients) if site != 3} == {8}
    slept = max(e.at_s for e in happened if isinstance(e, FaultInjected) and e.over)
    back = [e for e in happened if isinstance(e, WorkerWent) and e.site == 5 and e.at_s > slept]
    assert back  # and went on
    assert every(map(math.isfinite, final(tmp_path)))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_processes_stand_for_registered_clients(tmp_path: Path) -> None:
    more = "clients = {registered = 30, vanish = 0.1}\nstop = {rounds = 5}\n"
    text = scenario('{kind = "fedavg", fraction = 0.75, give_up_after = 1, deadline_s = 4}', more)
    hub(tmp_path, "server", names(CLIENTS), 1e8)
    (tmp_path / "scenario.toml").write_text(text)
    overlay = load_overlay(str(tmp_path / "hub.toml"))
    run_locally(tmp_path / "scenario.toml", 0, overlay, tmp_path / "run.db")
    happened = [event for _, event in read_events(tmp_path / "run.db")]
    check(happened)
    went = [event for event in happened if isinstance(event, WorkerWent)]
    assert len({event.client for event in went}) > CLIENTS


@seeds(10, 150)  # 96 has a buffer with the updates of all clients that are free
def test_drawn_federated_runs_end_and_settle_each_update_once(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path)


def test_a_run_whose_workers_are_all_barred_says_so(tmp_path: Path) -> None:
    merge = 'merge = {kind = "outlier-filter", beta = 1.0, patience = 1}'
    end = simulated(scenario('{kind = "fedavg"}', merge), tmp_path)[-1]
    assert isinstance(end, RunEnded)
    assert end.reason is not None
    assert "4 of 4 workers were barred to the end" in end.reason


def test_connections_without_a_client_that_is_not_barred_stand_idle(tmp_path: Path) -> None:
    """All of six are barred after an update each; with an end, by step, two of them come back."""
    merge = (
        'merge = {kind = "outlier-filter", beta = 1.0, patience = 1%s}\nclients = {registered = 6}'
    )
    end = simulated(scenario('{kind = "fedbuff", size = 2}', merge % ""), tmp_path)[-1]
    assert isinstance(end, RunEnded)
    assert end.reason is not None
    assert "all registered clients were barred" in end.reason
    other = tmp_path / "other"
    other.mkdir()
    ends = scenario('{kind = "fedbuff", size = 2}', merge % ", ends_after = 1")
    happened = simulated(ends, other)
    check(happened)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went == dict.fromkeys(range(CLIENTS), 4)
    assert happened[-1].reason is None  # type: ignore[union-attr]


@pytest.mark.parametrize("pace", ['{kind = "fedavg"}', '{kind = "fedbuff", size = 3}'])
def test_a_blacklist_ends_though_all_are_on_it(pace: str, tmp_path: Path) -> None:
    merge = 'merge = {kind = "outlier-filter", beta = 1.0, patience = 1, ends_after = 1}'
    happened = simulated(scenario(pace, merge), tmp_path)
    check(happened)
    went = Counter(event.site for event in happened if isinstance(event, WorkerWent))
    assert went == dict.fromkeys(range(CLIENTS), 4)
    barred = sum(isinstance(event, ClientBarred) for event in happened)
    assert barred > CLIENTS


def test_clients_that_are_barred_do_not_hold_the_cache_back(tmp_path: Path) -> None:
    """Two of six send the contrary of what they learn; without them the others learn."""
    more = 'merge = {kind = "outlier-filter", beta = 0.2, patience = 1}\nstop = {rounds = 12}'
    adversaries = 'adversaries = {kind = "scaled", share = 0.34, factor = -1.0}'
    accuracy = {}
    for mixes in ("updates", "cache"):
        folder = tmp_path / mixes
        folder.mkdir()
        text = scenario('{kind = "fedavg"}', more, f', mixes = "{mixes}"', clients=6)
        text = text.replace('"digits"', f'"digits", evaluate_every = 1, {adversaries}')
        happened = simulated(text, folder, 6)
        assert sum(isinstance(event, ClientBarred) for event in happened) == 2
        accuracy[mixes] = [e.accuracy for e in happened if isinstance(e, Evaluated)][-1]
    assert accuracy["cache"] > accuracy["updates"] - 0.03


def test_a_run_whose_updates_are_all_too_late_says_so(tmp_path: Path) -> None:
    pace = '{kind = "fedavg", deadline_s = 0.01, give_up_after = 1}'
    end = simulated(scenario(pace, "stop = {rounds = 2}"), tmp_path)[-1]
    assert isinstance(end, RunEnded)
    assert end.error is None
    assert end.reason == "all updates were discarded: the model is as it was (pace, merge)"
