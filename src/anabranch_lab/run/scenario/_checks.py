"""Check that a scenario can be run: that its keys fit each other, its overlay, and its world."""

from __future__ import annotations

import math
import re

from anabranch._typed_toml import BadInput, tag_of
from anabranch.fleet import ComputeError
from anabranch.merge import DataSize, Mean, OutlierFilter, Product, Robust, filter_of
from anabranch.overlay import Overlay, OverlayError
from anabranch.pace import Bsp, FedAvg, FlR2sp, StatedBatches, TunedBatches
from anabranch.period import Every, EveryEpoch
from anabranch.plan import ForestRoute, Plan, PlanError
from anabranch.scheduler.awareness import Passive
from anabranch.scheduler.deal import cuts_tensors
from anabranch.scheduler.paced import (
    Serve,
    forest_misfit,
    groups_misfit,
    misfit,
    unfit_for_letters,
)
from anabranch.train import local_steps
from anabranch_lab.run._faults import FaultError, Kill, LinkFactor, Pause, script
from anabranch_lab.run.scenario._effect import without_effect
from anabranch_lab.run.scenario._model import Scenario, compute_model, script_of, with_compute_times
from anabranch_lab.run.scenario.tasks import Exchange, Own, Train
from anabranch_lab.tasks.adversaries import Noise, Scaled
from anabranch_lab.tasks.profiles import load_profile
from anabranch_lab.tasks.sampling import Shuffled


class ScenarioError(BadInput):
    """The scenario cannot be run; the message names the file, the key and the fix."""


def check_keys(scenario: Scenario) -> None:
    """Check that the scenario's keys fit each other.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    task = scenario.task
    if isinstance(task, Exchange):
        if (task.profile is None) == (task.elements is None):
            raise ScenarioError("task: give either profile or elements")
        if task.profile is not None:
            try:
                load_profile(task.profile)
            except ValueError as error:
                raise ScenarioError(f"task.profile: {error}") from None
    elif isinstance(task, Own):
        _check_own(task)
    elif task.optimiser == "adam" and task.momentum:
        raise ScenarioError("task.momentum: adam has none; leave it out")
    _check_data(scenario)
    if scenario.stop.at_target and task.target_accuracy is None:
        raise ScenarioError(
            "stop.at_target: there is no target; give task.target_accuracy, or leave it out"
        )
    if scenario.stop.at_target and scenario.simulation.tensors == "sizes":
        raise ScenarioError(
            "stop.at_target: nothing is learnt where simulation.tensors is sizes; leave one of "
            "them out"
        )
    if task.evaluate_every_s is not None and not scenario.is_served:
        raise ScenarioError(
            "task.evaluate_every_s: rounds of an all-reduce end at all sites at once, and "
            "task.evaluate_every counts them; leave it out, or give [serve]"
        )
    _check_probes(scenario)
    _check_cut(scenario)
    _check_merge(scenario)
    _check_one_by_one(scenario)
    _check_clients(scenario)
    _check_adversaries(scenario)
    _check_served(scenario)
    _check_period(scenario)
    if not scenario.routes:
        raise ScenarioError("route: there is none; give at least one")
    without = next(without_effect(scenario), None)
    if without is not None:
        raise ScenarioError(f"{without[0]}: {without[1]}")


def _check_data(scenario: Scenario) -> None:
    task, sampling = scenario.task, scenario.sampling
    if not isinstance(task, Train):
        if not isinstance(sampling, Shuffled):
            raise ScenarioError(
                f'sampling.kind: "{tag_of(sampling)}" is for task.kind = "train"; code of your own '
                "draws its samples itself, and an exchange draws none; leave it out"
            )
        return
    for key, answer in (("task.partition", task.partition), ("sampling", sampling)):
        if answer.by_label and task.data == "translation":
            raise ScenarioError(
                f'{key}.kind: "{tag_of(answer)}" goes by the one label of each sample, and '
                "translation has one for each token; leave it out, or take other data"
            )


def _check_own(task: Own) -> None:
    name = r"[^\W\d]\w*"
    if not re.fullmatch(rf"{name}(\.{name})*:{name}", task.factory) or ".py:" in task.factory:
        meant = task.factory.replace(".py:", ":") if ".py:" in task.factory else "module:function"
        raise ScenarioError(f"task.factory: {task.factory!r} names no function; give {meant}")
    for key, value in task.options.items():
        _check_option(value, f"task.options.{key}")


def _check_option(value: object, path: str) -> None:
    """Check that a value reaches other processes unchanged."""
    match value:
        case float() if not math.isfinite(value):
            raise ScenarioError(f"{path}: must be a finite number, not {value}")
        case list():
            for index, item in enumerate(value):
                _check_option(item, f"{path}[{index}]")
        case dict():
            for key, item in value.items():
                _check_option(item, f"{path}.{key}")
        case str() | bool() | int() | float():
            pass
        case _:
            raise ScenarioError(f"{path}: dates and times are not handed on; write it as a string")


def _check_cut(scenario: Scenario) -> None:
    task = scenario.task
    if not cuts_tensors(scenario.deal):
        return
    if scenario.period.averages or scenario.gossip is not None:
        raise ScenarioError(
            'deal.cut: "tensors" is of gradients, and here sites average or send whole models; '
            'leave it out, or give period = {kind = "every-step"}'
        )
    if isinstance(task, Own):
        raise ScenarioError(
            "deal.cut: the tensors in a buffer of your own code are not known; leave it out, or "
            'give task.kind = "train"'
        )
    if isinstance(task, Exchange) and task.profile is None:
        raise ScenarioError(
            "deal.cut: the tensors of a buffer of so many elements are not known; give "
            "task.profile in place of task.elements, or leave it out"
        )


def _check_served_period(scenario: Scenario) -> None:
    if not isinstance(scenario.period, Every | EveryEpoch):
        raise ScenarioError(
            f'period.kind: "{tag_of(scenario.period)}" goes by what sites that all-reduce know of '
            'each other, and here each pushes to servers; give "every", or have pace.kind = "bsp" '
            "and no [serve]"
        )
    learns = isinstance(scenario.task, Train) and scenario.simulation.tensors != "sizes"
    if isinstance(scenario.period, EveryEpoch) and not learns:
        raise ScenarioError(
            'period.kind: "every-epoch" counts the samples that a site has, and only task.kind = '
            '"train" has any (not with simulation.tensors = "sizes"); give "every"'
        )
    average = scenario.average
    if average is not None and (average.delay or average.fragments > 1):
        raise ScenarioError(
            "average: where the model is served, steps wait for the whole model; leave delay and "
            "fragments out"
        )
    if average is not None and average.wire != "float32":
        raise ScenarioError(
            f"average.wire: {average.wire} is for averages by all-reduce, and here servers hold "
            "the model; leave it out, or leave pace and [serve] out"
        )


def _check_one_by_one(scenario: Scenario) -> None:
    """Check the rules that need each update separately."""
    merge, mixes = scenario.merge, "updates" if scenario.serve is None else scenario.serve.mixes
    if filter_of(merge) is None and not isinstance(merge, Robust) and mixes == "updates":
        return
    key = f"serve.mixes: {mixes}" if mixes != "updates" else f'merge.kind: "{tag_of(merge)}"'
    if not scenario.is_served:
        raise ScenarioError(
            f"{key} looks at updates one by one, and an all-reduce has none; give [serve], and a "
            "pace such as fedavg"
        )
    forest = any(isinstance(route, ForestRoute) for route in scenario.routes)
    why = misfit(scenario.pace, merge, scenario.serve or Serve(), forest)
    if why is not None:
        raise ScenarioError(why)
    if filter_of(merge) is not None and scenario.simulation.tensors == "sizes":
        raise ScenarioError(
            f"{key} looks at numbers, and there are none where simulation.tensors is sizes; leave "
            "one of them out"
        )


def _check_adversaries(scenario: Scenario) -> None:
    task = scenario.task
    if not isinstance(task, Train) or task.adversaries is None:
        return
    if isinstance(task.adversaries, Noise | Scaled) and scenario.has_local_steps:
        raise ScenarioError(
            f'task.adversaries.kind: "{tag_of(task.adversaries)}" is of updates, and these sites '
            'average or send models; have the model served, or give "label-flip"'
        )
    if scenario.simulation.tensors == "sizes":
        raise ScenarioError(
            "task.adversaries: nothing is learnt where simulation.tensors is sizes; leave one out"
        )


def _check_clients(scenario: Scenario) -> None:
    clients, task = scenario.clients, scenario.task
    if clients is None:
        return
    if not scenario.is_served or scenario.pace.barrier or scenario.computes_ahead:
        raise ScenarioError(
            "clients: they push to a model that is served, each by itself; give [serve] without "
            "ahead, and a pace such as fedavg or fl-r2sp"
        )
    if any(isinstance(route, ForestRoute) for route in scenario.routes):
        raise ScenarioError("clients: a forest's trees are of workers; give another route")
    pace = scenario.pace
    gives_up = isinstance(pace, FedAvg | FlR2sp) and pace.give_up_after and pace.deadline_s
    if scenario.serve is not None and scenario.serve.mixes == "cache":
        raise ScenarioError(
            "serve.mixes: a cache has the last model of each worker, which stands for one client "
            'after another here; give "updates" or "models", or leave [clients] out'
        )
    if getattr(scenario.pace, "grouping", "index") != "index":
        raise ScenarioError(
            "pace.grouping: delays are of workers, which stand for one client after another here; "
            'give "index", or leave [clients] out'
        )
    if clients.vanish and not gives_up:
        raise ScenarioError(
            "clients.vanish: rounds would wait for ever for clients that vanish; give "
            "pace.give_up_after and pace.deadline_s (fedavg, fl-r2sp), or leave it out"
        )
    if isinstance(task, Own):
        raise ScenarioError(
            'clients: code of your own trains on one site\'s data; have task.kind = "train"'
        )
    if isinstance(task, Train) and (task.optimiser != "sgd" or task.momentum):
        raise ScenarioError(
            "clients: a worker's optimiser would carry one client's state to another; have "
            'task.optimiser = "sgd" without momentum'
        )


def _check_served(scenario: Scenario) -> None:
    if not scenario.is_served:
        if isinstance(scenario.load, TunedBatches):
            raise ScenarioError(
                "load: a scheduler tunes batches by the updates that it sees, and sees none of an "
                'all-reduce; give [serve], another pace than bsp, or load.kind = "stated"'
            )
        if isinstance(scenario.load, StatedBatches) and isinstance(scenario.task, Exchange):
            raise ScenarioError(
                "load: stated batches weigh gradients and models, and an exchange has none; train "
                "a model, or give compute.sites other speeds"
            )
        if isinstance(scenario.load, StatedBatches) and scenario.scales_steps:
            _check_scaled(scenario)
        return
    if scenario.on_loss != "abort":
        raise ScenarioError(
            f'on_loss: "{scenario.on_loss}" is for all-reduces; where the model is served, the '
            "others go on without a worker in any case; leave it out"
        )
    is_forest = all(isinstance(route, ForestRoute) for route in scenario.routes)
    awareness = None if is_forest else scenario.awareness
    for key, value in (("awareness", awareness), ("deal", scenario.deal)):
        if value is not None:
            raise ScenarioError(
                f"{key}: where the model is served, its chunks stay with their trees; leave it out"
            )
    task, load = scenario.task, scenario.load
    if isinstance(load, TunedBatches) and not 1 <= task.batch_size <= load.most:
        raise ScenarioError(
            f"load.most: {load.most} samples where task.batch_size is {task.batch_size}; "
            "give a batch_size of 1 or more, and no smaller most"
        )


def _check_scaled(scenario: Scenario) -> None:
    task = scenario.task
    if isinstance(task, Train) and task.optimiser != "sgd":
        raise ScenarioError(
            f'load: gossip by "pairs" and "plain" scales gradients by stated batches, which '
            f'task.optimiser = "{task.optimiser}" undoes; give "sgd", or gossip.rule = "push-sum"'
        )


def _check_period(scenario: Scenario) -> None:
    period, average = scenario.period, scenario.average
    if scenario.gossip is not None:
        _check_gossip(scenario)
    if not period.averages:
        if average is not None:
            raise ScenarioError(
                "average: gradients are exchanged in every step, so no models are averaged; leave "
                'it out, or give period = {kind = "every", steps = 4}'
            )
        return
    kind = tag_of(period)
    if scenario.is_served:
        _check_served_period(scenario)
        return
    if isinstance(period, EveryEpoch):
        raise ScenarioError(
            'period.kind: "every-epoch" has each site make as many steps as its samples take, and '
            'an all-reduce has all make as many; give [serve], or "every"'
        )
    learns = not isinstance(scenario.task, Exchange) and scenario.simulation.tensors != "sizes"
    if (period.asks_moved or period.shares) and not learns:
        raise ScenarioError(
            f'period.kind: "{kind}" goes by how far models move, and nothing is learnt here; give '
            '"every"'
        )
    if average is None:
        return
    if isinstance(scenario.task, Exchange):
        raise ScenarioError("average: an exchange has no model to average; leave it out")
    try:
        local_steps.check(period, average)
    except ValueError as error:
        raise ScenarioError(f"average.{error}") from None


def _check_gossip(scenario: Scenario) -> None:
    others = {
        "average": scenario.average,
        "serve": scenario.serve,
        "pace": None if isinstance(scenario.pace, Bsp) else scenario.pace,
        "awareness": scenario.awareness,
    }
    for key, value in others.items():
        if value is not None:
            raise ScenarioError(
                f"{key}: sites that gossip wait for no others, and average with neighbours alone; "
                f"leave {key} or [gossip] out"
            )
    if scenario.period.shares:
        raise ScenarioError(
            f'period.kind: "{tag_of(scenario.period)}" goes by what all sites have measured, and '
            'sites that gossip tell neighbours alone; give "every"'
        )
    if isinstance(scenario.task, Exchange):
        raise ScenarioError("gossip: an exchange has no model to send; leave it out")
    if (why := unfit_for_letters(scenario.merge)) is not None:
        raise ScenarioError(why)


def _check_merge(scenario: Scenario) -> None:
    merge, task = scenario.merge, scenario.task
    if merge.weighs_data and not isinstance(task, Train):
        raise ScenarioError(
            'merge.kind: "data-size" is for task.kind = "train"; it is not known how many samples '
            "sites have elsewhere; leave it out"
        )
    if merge.weighs_data and scenario.simulation.tensors == "sizes":
        raise ScenarioError(
            'merge.kind: "data-size" needs data, and there is none where simulation.tensors is '
            "sizes; leave one of them out"
        )
    rules = merge.of if isinstance(merge, Product) else (merge,)
    if all(isinstance(rule, Mean | DataSize | OutlierFilter | Robust) for rule in rules):
        return
    kind = tag_of(merge)
    if not scenario.is_served and scenario.gossip is None:
        raise ScenarioError(
            f'merge.kind: "{kind}" weighs updates that come one by one, and an all-reduce has '
            'none; give [serve], or "mean" or "data-size"'
        )
    if merge.asks_loss and scenario.simulation.tensors == "sizes":
        raise ScenarioError(
            f'merge.kind: "{kind}" weighs by losses, and there are none where simulation.tensors '
            "is sizes; leave one of them out"
        )
    if merge.asks_loss and isinstance(task, Exchange):
        raise ScenarioError(
            f'merge.kind: "{kind}" weighs by losses, and an exchange has none; train a model'
        )


def _check_probes(scenario: Scenario) -> None:
    awareness = scenario.awareness
    if not isinstance(awareness, Passive):
        return
    probe_elements = awareness.probe_chunk_elements
    if awareness.estimator == "busy-period":
        usual = Passive()
        for key in ("probe_chunk_elements", "probe_chunks"):
            if getattr(awareness, key) != getattr(usual, key):
                raise ScenarioError(
                    f"awareness.{key}: only the chunk-mean estimator has probes; leave it out, or "
                    'give awareness.estimator = "chunk-mean"'
                )
        return
    most = scenario.chunk_elements
    if most is not None and probe_elements is not None and probe_elements > most:
        raise ScenarioError(
            f"awareness.probe_chunk_elements: no chunk has {probe_elements} elements, for "
            f"chunk_elements is {most}, so nothing would be measured; give less"
        )


def check(scenario: Scenario, overlay: Overlay) -> None:
    """Check the scenario against its overlay: the sites and links that it names, and every plan.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    try:
        script_of(scenario, overlay)
        compute_model(scenario, overlay)
    except (FaultError, ComputeError) as error:
        raise ScenarioError(str(error)) from None
    names = {*overlay.names}
    stated = scenario.load.samples if isinstance(scenario.load, StatedBatches) else {}
    if unknown := [name for name in stated if name not in names]:
        raise ScenarioError(f"load.samples: the overlay has no site {unknown[0]!r}")
    if scenario.serve is not None:
        if unknown := [name for name in scenario.serve.only if name not in names]:
            raise ScenarioError(f"serve.only: the overlay has no site {unknown[0]!r}")
        if not scenario.workers(overlay):
            raise ScenarioError("serve.only: it names every site; let one compute")
    workers = len(scenario.workers(overlay))
    if scenario.clients is not None and scenario.clients.registered <= workers:
        raise ScenarioError(
            f"clients.registered: {scenario.clients.registered} for {workers} workers, which stand "
            "for a client each at any time; give more, or leave [clients] out"
        )
    for index, route in enumerate(scenario.routes):
        key = f"route[{index}]" if isinstance(scenario.route, tuple) else "route"
        try:
            if isinstance(route, ForestRoute):
                _check_forest(scenario)
                route = with_compute_times(route, scenario, overlay)
            plan = route.plan(overlay)
            if plan.groups:  # a plan from a file may have groups too
                _check_forest(scenario)
                _check_groups(plan, scenario, overlay)
        except (OverlayError, PlanError) as error:
            raise ScenarioError(f"{key}: {error}") from None


def _check_forest(scenario: Scenario) -> None:
    if not scenario.is_served:
        raise PlanError(
            "a forest's trees push to a model that is served, each at its own pace; give "
            'pace = {kind = "asp"} or another than bsp, or [serve]'
        )
    has_within = any(isinstance(each, ForestRoute) and each.within for each in scenario.routes)
    why = forest_misfit(has_within, scenario.serve or Serve(), scenario.awareness)
    if why is not None:
        raise PlanError(why)


def _check_groups(plan: Plan, scenario: Scenario, overlay: Overlay) -> None:
    names = overlay.names
    why = groups_misfit(plan, scenario.workers(overlay), names)
    if why is not None:
        raise PlanError(why)


def check_real(scenario: Scenario, overlay: Overlay, emulated: bool = False) -> None:
    """Check that a scenario needs nothing that only a simulation has.

    Args:
        scenario, overlay: what is to run, and on which network.
        emulated: whether the kernel keeps the links' rates, instead of the sender.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    _check_real_faults(scenario, overlay, emulated)
    capped = [
        site.name
        for site in overlay.sites
        if site.uplink_bps is not None or site.downlink_bps is not None
    ]
    if scenario.shaped is not False and capped and not emulated:
        raise ScenarioError(
            f"overlay: site {capped[0]} has a capped port, which a sender cannot keep; leave the "
            "caps out, say shaped = false, run with --emulate, or run `anabranch simulate`"
        )


def _check_real_faults(scenario: Scenario, overlay: Overlay, emulated: bool) -> None:
    """Check that a real run can carry out the scripted faults.

    Raises:
        ScenarioError: names the entry, and what to do.
    """
    leave = "leave it out, or run `anabranch simulate`"
    for i, fault in enumerate(scenario.fault):
        entry = f"fault[{i}]"
        [what, *_] = script((fault,), overlay)
        if what.round is not None:
            raise ScenarioError(
                f"{entry}.round: no real site knows when another begins a round; give at_s, or "
                "run `anabranch simulate`"
            )
        match what.action:
            case Kill(for_s=float()):
                raise ScenarioError(
                    f"{entry}.for_s: nothing starts a killed site of a real run again; {leave}"
                )
            case Kill() | Pause():
                pass
            case LinkFactor():
                if emulated or scenario.shaped is False:
                    holds = "the kernel holds them" if emulated else "they are real"
                    raise ScenarioError(
                        f"{entry}: links have faults where the sender holds them (shaped), and "
                        f"here {holds}; {leave}"
                    )
            case _:
                raise ScenarioError(
                    f"{entry}: {what.label}: this happens in simulation only; {leave}"
                )


def check_twin(scenario: Scenario) -> None:
    """Check that a scenario means the same in both worlds.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    if scenario.shaped is False:
        raise ScenarioError("shaped: a twin needs links that keep their rates; leave it out")
    if scenario.is_served:
        raise ScenarioError(
            "pace: a twin compares rounds, and where the model is served there are none; simulate "
            "the scenario and run it"
        )
    if scenario.simulation.control_latency_s:
        raise ScenarioError(
            "simulation.control_latency_s: real processes on one machine have none, so it makes no "
            "twin; leave it out"
        )


def check_simulable(scenario: Scenario) -> None:
    """Check that a scenario has all that a simulation needs.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    if scenario.compute is None and scenario.task.batch_size:
        raise ScenarioError(
            "compute: a simulation cannot tell how long a step takes; give [compute] with "
            "samples_per_s"
        )
