"""A scenario: one TOML file that describes a run, in either world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from anabranch import overlay as overlays
from anabranch import pace as paces
from anabranch import plan as plans
from anabranch._typed_toml import Table, TomlError, decode_toml
from anabranch.learn.profiles import load_profile
from anabranch.overlay import Overlay, OverlayError
from anabranch.plan import Plan, PlanError
from anabranch.sim.compute import Compute, ComputeError, ComputeModel
from anabranch.sim.faults import Fault, FaultError, script
from anabranch.site.dataplane import MOST_CHUNK_ELEMENTS


class ScenarioError(ValueError):
    """A scenario that cannot be run; the message names the file, the key and the fix."""


_Positive = Annotated[int, Meta(ge=1)]
_PACKED_CHUNKS = 1000  # about as many chunks a round on packed trees
_LONGEST_S = 1e9  # thirty years; TOML has inf and nan, and a bound keeps both out
_Seconds = Annotated[float, Meta(gt=0, le=_LONGEST_S)]


class Star(Table, frozen=True, kw_only=True, tag_field="kind", tag="star"):
    """Every site talks to one hub.

    Args:
        hub: a site's name; None for the best.
    """

    hub: str | None = None


class Balanced(Table, frozen=True, kw_only=True, tag_field="kind", tag="balanced"):
    """A balanced tree, laid over the sites whatever their links.

    Args:
        root: a site's name; None for the best.
        arity: the most children of a site.
    """

    root: str | None = None
    arity: _Positive = 2


class Spanning(Table, frozen=True, kw_only=True, tag_field="kind", tag="mst"):
    """The maximum-throughput spanning tree.

    Args:
        root: a site's name; None for the best.
    """

    root: str | None = None


class Fapt(Table, frozen=True, kw_only=True, tag_field="kind", tag="fapt"):
    """Fastest aggregation path trees, one for each root.

    Args:
        roots: how many of the best, or the names of the sites; None for every site.
    """

    roots: int | tuple[str, ...] | None = None


class Packed(Table, frozen=True, kw_only=True, tag_field="kind", tag="packed"):
    """Trees packed so that together they use what the network has."""


class FromFile(Table, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """A plan of your own.

    Args:
        path: of the plan as JSON, as ``anabranch plan --save`` writes it, from the scenario's
            folder.
    """

    path: str


Route = Star | Balanced | Spanning | Fapt | Packed | FromFile


class ByShare(Table, frozen=True, kw_only=True, tag_field="kind", tag="by-share"):
    """Deal all chunks to the trees when the round begins, in proportion to their shares."""


class Adaptive(Table, frozen=True, kw_only=True, tag_field="kind", tag="adaptive"):
    """Give the next chunk to the tree that ended one, while the round goes on.

    Args:
        window: how many chunks may be under way; None for what the plan needs.
    """

    window: _Positive | None = None


class Passive(Table, frozen=True, kw_only=True, tag_field="kind", tag="passive"):
    """Measure links by the chunks that cross them anyway, and plan again as they change.

    Args:
        update_time_s: how often plans are looked at, seconds (UPDATE_TIME; the paper's is 5).
            Where a look takes long, the pause after it is at least twenty times that. How long
            rates last is learnt from looks at least 5 s apart.
        update_rate: how much a link's rate must have changed to count, relative (UPDATE_RATE).
        least_gain: how much shorter a round must get, relative, for a new plan to be taken.
        start: what is believed of links before they are measured: what the overlay says, or that
            all are ``equal``.
        estimator: ``busy-period`` tells the rate from latency and queueing; ``chunk-mean`` is the
            paper's (NetStorm, eq. 14).
        probe_chunk_elements: for ``chunk-mean``: smaller chunks are not measured
            (PROBE_CHUNK_SIZE); None for a quarter of the largest chunk.
        probe_chunks: for ``chunk-mean``: how many chunks an estimate is made of (PROBE_CHUNK_NUM).
    """

    update_time_s: _Seconds = 1.0
    update_rate: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = 0.02
    start: Literal["overlay", "equal"] = "overlay"
    estimator: Literal["busy-period", "chunk-mean"] = "busy-period"
    probe_chunk_elements: _Positive | None = None
    probe_chunks: _Positive = 4


class Oracle(Table, frozen=True, kw_only=True, tag_field="kind", tag="oracle"):
    """Know every link's true rate at every moment: what awareness can be compared with.

    Args:
        update_time_s, update_rate, least_gain: as for ``passive``.
    """

    update_time_s: _Seconds = 1.0
    update_rate: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    least_gain: Annotated[float, Meta(ge=0, lt=1)] = 0.02


Awareness = Passive | Oracle


class Auxiliary(Table, frozen=True, kw_only=True):
    """Further paths between tree neighbours, over links that the trees leave idle.

    Args:
        search: ``disjoint`` finds them for each pair on its own; ``algorithm-3`` is the paper's.
        primary_busy_bound: chunks at which a primary path counts as busy (PRIMARY_BUSY_BOUND).
        auxiliary_queue_length: chunks that an auxiliary path takes (AUXILIARY_QUEUE_LENGTH).
    """

    search: Literal["disjoint", "algorithm-3"] = "disjoint"
    primary_busy_bound: _Positive = 2
    auxiliary_queue_length: _Positive = 1


class Train(Table, frozen=True, kw_only=True, tag_field="kind", tag="train"):
    """Train a model: every step, all sites average their gradients.

    Args:
        data: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar-10``; ``cifar-10-part``, which needs
            only four of its files; or tokens: ``pairs``, ``translation``.
        model: ``softmax``, ``mlp``, ``cnn``, ``lenet-5``, ``alexnet``, ``vgg-16``, ``resnet-20`` or
            ``resnet-32``; for ``pairs``, ``bert`` or ``bert-tiny``; for ``translation``,
            ``t5-small`` or ``t5-tiny``.
        hidden: widths of the mlp's hidden layers; its own choice if empty.
        optimiser: ``sgd`` or ``adam``.
        learning_rate: step size.
        momentum: of sgd.
        batch_size: samples a site takes each step.
        evaluate_every: rounds between two looks at the held-out data.
        target_accuracy: what time-to-accuracy is measured to; None for no target.
    """

    data: Literal[
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar-10",
        "cifar-10-part",
        "pairs",
        "translation",
    ] = "digits"
    model: Literal[
        "softmax",
        "mlp",
        "cnn",
        "lenet-5",
        "alexnet",
        "vgg-16",
        "resnet-20",
        "resnet-32",
        "bert",
        "bert-tiny",
        "t5-small",
        "t5-tiny",
    ] = "mlp"
    hidden: tuple[_Positive, ...] = ()
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Meta(gt=0, le=1e9)]
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    batch_size: _Positive = 32
    evaluate_every: _Positive = 10
    target_accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None


class Exchange(Table, frozen=True, kw_only=True, tag_field="kind", tag="exchange"):
    """Exchange a buffer and compute no gradients; every mean is checked against the exact one.

    Args:
        profile: the model whose parameter count the buffer has: ``alexnet``, ``vgg-16``,
            ``resnet-20``, ``resnet-32``, ``inception-v3``, ``bert`` or ``t5-small``; or
        elements: its length.
        batch_size: samples whose computing ``[compute]`` lets pass before each exchange.
    """

    profile: str | None = None
    elements: _Positive | None = None
    batch_size: Annotated[int, Meta(ge=0)] = 0

    @property
    def buffer_elements(self) -> int:
        """The buffer's length, of a task that has been checked."""
        if self.profile is not None:
            return load_profile(self.profile).elements
        assert self.elements is not None
        return self.elements


Task = Train | Exchange


class Bsp(Table, frozen=True, kw_only=True, tag_field="kind", tag="bsp"):
    """Bulk-synchronous: nobody takes the next step before all have ended this one."""


class Asp(Table, frozen=True, kw_only=True, tag_field="kind", tag="asp"):
    """Asynchronous: everybody goes on as soon as its own update is in."""


class Ssp(Table, frozen=True, kw_only=True, tag_field="kind", tag="ssp"):
    """Stale-synchronous.

    Args:
        lead: how many updates a worker may be ahead of the slowest.
    """

    lead: Annotated[int, Meta(ge=0)]


class Safa(Table, frozen=True, kw_only=True, tag_field="kind", tag="safa"):
    """Semi-asynchronous rounds of the quickest.

    Args:
        fraction: of the workers whose updates end a round.
        lag_tolerance: how many rounds late an update may come.
    """

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    lag_tolerance: Annotated[int, Meta(ge=0)] = 5


class R2sp(Table, frozen=True, kw_only=True, tag_field="kind", tag="r2sp"):
    """Round-robin synchronous: one worker after the other, evenly apart.

    Args:
        relaxation: of the gap between two turns, the paper's r.
    """

    relaxation: Annotated[float, Meta(ge=0, le=1)] = 0.8


class Waves(Table, frozen=True, kw_only=True, tag_field="kind", tag="waves"):
    """Steps of the first few updates that are in, as few as the network makes worth it.

    Args:
        staleness_cost: how many more iterations, as a part, training needs when every update
            misses all others of an iteration.
    """

    staleness_cost: Annotated[float, Meta(ge=0, le=1e6)] = 0.25


Pace = Bsp | Asp | Ssp | Safa | R2sp | Waves


class Serve(Table, frozen=True, kw_only=True):
    """Let the roots of the route's trees hold the model; workers push updates and pull it.

    Args:
        only: names of sites that compute nothing.
        ahead: whether a worker computes its next update while its last one and the model are on
            their way: they then cost no time, but what it computes on is one update older.
    """

    only: tuple[str, ...] = ()
    ahead: bool = False


class EveryStep(Table, frozen=True, kw_only=True, tag_field="kind", tag="every-step"):
    """Synchronise after every step."""


class Mean(Table, frozen=True, kw_only=True, tag_field="kind", tag="mean"):
    """Every site's update weighs the same."""


class EqualBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="equal"):
    """Every site takes batches of the same size."""


class TunedBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="tuned"):
    """Faster workers take larger batches, so that iterations take equally long.

    Args:
        most: samples of the largest batch; what memory allows.
    """

    most: _Positive


class Shuffled(Table, frozen=True, kw_only=True, tag_field="kind", tag="shuffled"):
    """Samples are dealt evenly to the sites, and every site shuffles its own each epoch."""


class Stop(Table, frozen=True, kw_only=True):
    """When a run ends: at whichever comes first. The round in progress is always finished.

    Args:
        rounds: how many synchronisations at most.
        after_s: seconds since the run began; None for no limit.
        at_target: once the task's ``target_accuracy`` has been seen.
    """

    rounds: _Positive
    after_s: _Seconds | None = None
    at_target: bool = False


class Simulation(Table, frozen=True, kw_only=True):
    """What only a simulation has to be told.

    Args:
        tensors: whether chunks hold numbers (``real``) or have only sizes (``sizes``), which is
            much faster, and trains nothing; None is ``real`` for training and ``sizes`` for
            exchanges.
        control_latency_s: one way between the scheduler and each site, seconds.
    """

    tensors: Literal["real", "sizes"] | None = None
    control_latency_s: Annotated[float, Meta(ge=0, le=_LONGEST_S)] = 0.0


class Scenario(Table, frozen=True, kw_only=True):
    """What to run, once for each route. The six questions are route to sampling.

    Args:
        label: for titles; each plan's own label if empty.
        overlay: a built-in overlay's name, or the path of a file, from the scenario's folder.
        route: where aggregates travel, packed trees if not given; of a list, each is a run of its
            own.
        pace: when a participant may proceed.
        period: how often they talk.
        merge: what an update weighs.
        load: how much work each does.
        sampling: which samples each draws.
        task: what the sites do.
        stop: when the run ends.
        compute: how long computing takes. In simulation that is all it takes; with real
            processes, a site that is done sooner waits.
        fault: what goes wrong, and when; in simulation only.
        simulation: what only a simulation has to be told.
        deal: how chunks are dealt to the trees of the route; None for ``adaptive`` on packed trees
            and ``by-share`` on other routes.
        awareness: how the scheduler learns of the network while the run goes on, and plans again;
            None keeps the first plan.
        auxiliary: paths that help the trees' links; None for none.
        serve: who holds the model where workers push and pull; None all-reduces under ``bsp``,
            and lets all sites compute under other paces.
        seed: of every random choice.
        chunk_elements: the most elements of a chunk; None for 262,144, and on packed trees for a
            thousandth of the buffer, between 16,384 and 65,536.
        congestion_control: what lanes between machines ask the kernel for; None for bbr, and cubic
            on links of less than 1 ms that lose nothing. Where it may not be set, each lane takes
            several connections instead.
        sample_every_s: how often a site writes down what its links carried, seconds.
        shaped: hold each link to the overlay's rate and latency, where processes on one machine
            stand for sites; the simulation's links always keep them.
    """

    label: str = ""
    overlay: str
    route: Route | tuple[Route, ...] = Packed()
    pace: Pace = Bsp()
    period: EveryStep = EveryStep()
    merge: Mean = Mean()
    load: EqualBatches | TunedBatches = EqualBatches()
    sampling: Shuffled = Shuffled()
    task: Task
    stop: Stop
    compute: Compute | None = None
    fault: tuple[Fault, ...] = ()
    simulation: Simulation = Simulation()
    deal: ByShare | Adaptive | None = None
    awareness: Awareness | None = None
    auxiliary: Auxiliary | None = None
    serve: Serve | None = None
    seed: Annotated[int, Meta(ge=0)] = 0
    chunk_elements: Annotated[int, Meta(ge=1, le=MOST_CHUNK_ELEMENTS)] | None = None
    congestion_control: Literal["bbr", "cubic"] | None = None
    sample_every_s: _Seconds = 0.5
    shaped: bool = True

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes, each of which is a run of its own."""
        return self.route if isinstance(self.route, tuple) else (self.route,)

    def chunk_elements_of(self, buffer_elements: int) -> int:
        """Return the most elements of a chunk, in a run with one route and buffers of this size.

        Trees that are deep and many want small chunks, since a chunk's way through them costs time
        while the pipeline fills; smaller than 64 KiB they cost more to handle than they save.
        """
        if self.chunk_elements is not None:
            return self.chunk_elements
        if not isinstance(self.routes[0], Packed):
            return 1 << 18
        return min(max(buffer_elements // _PACKED_CHUNKS, 1 << 14), 1 << 16)

    @property
    def adaptive(self) -> Adaptive | None:
        """How a scenario with one route goes on dealing during a round; None if it does not."""
        if self.is_served:
            return None
        if self.deal is None:
            return Adaptive() if isinstance(self.routes[0], Packed) else None
        return self.deal if isinstance(self.deal, Adaptive) else None

    @property
    def is_served(self) -> bool:
        """Whether the roots of the route hold the model, and workers push and pull."""
        return self.serve is not None or not isinstance(self.pace, Bsp)

    @property
    def computes_ahead(self) -> bool:
        """Whether workers compute while their last update is on its way."""
        return self.serve is not None and self.serve.ahead

    def workers(self, overlay: Overlay) -> list[int]:
        """Return the sites that compute, by index."""
        idle = () if self.serve is None else self.serve.only
        return [index for index, site in enumerate(overlay.sites) if site.name not in idle]

    def runs(self) -> tuple[Scenario, ...]:
        """Return one scenario for each route."""
        return tuple(msgspec.structs.replace(self, route=route) for route in self.routes)


def load(path: Path) -> tuple[Scenario, Overlay]:
    """Read a scenario and its overlay.

    Raises:
        ScenarioError: names the file, the key, and what to do.
        OverlayError: the overlay cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read {path}: {error}") from None
    scenario = _from_folder(loads(text, str(path)), path.parent)
    source = Path(path.parent, scenario.overlay)
    overlay = overlays.load(source if source.is_file() else scenario.overlay)
    try:
        check(scenario, overlay)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return scenario, overlay


def _from_folder(scenario: Scenario, folder: Path) -> Scenario:
    """Return the scenario with the paths of its plans made whole."""

    def whole(route: Route) -> Route:
        if isinstance(route, FromFile):
            return msgspec.structs.replace(route, path=str(Path(folder, route.path).resolve()))
        return route

    routes = scenario.route
    found = tuple(map(whole, routes)) if isinstance(routes, tuple) else whole(routes)
    return msgspec.structs.replace(scenario, route=found)


def loads(text: str, where: str = "<string>") -> Scenario:
    """Read a scenario from TOML text.

    Raises:
        ScenarioError: names ``where``, the key, and what to do.
    """
    try:
        scenario = decode_toml(text, Scenario)
    except TomlError as error:
        raise ScenarioError(f"{where}: {error}") from error.__cause__
    task = scenario.task
    if isinstance(task, Exchange):
        if (task.profile is None) == (task.elements is None):
            raise ScenarioError(f"{where}: task: give either profile or elements")
        if task.profile is not None:
            try:
                load_profile(task.profile)
            except ValueError as error:
                raise ScenarioError(f"{where}: task.profile: {error}") from None
    elif task.optimiser == "adam" and task.momentum:
        raise ScenarioError(f"{where}: task.momentum: adam has none; leave it out")
    if scenario.stop.at_target and getattr(task, "target_accuracy", None) is None:
        raise ScenarioError(
            f"{where}: stop.at_target: there is no target; give task.target_accuracy, or leave it "
            "out"
        )
    if scenario.stop.at_target and scenario.simulation.tensors == "sizes":
        raise ScenarioError(
            f"{where}: stop.at_target: nothing is learnt where simulation.tensors is sizes; leave "
            "one of them out"
        )
    _check_probes(scenario, where)
    _check_served(scenario, where)
    if not scenario.routes:
        raise ScenarioError(f"{where}: route: there is none; give at least one")
    return scenario


def _check_served(scenario: Scenario, where: str) -> None:
    if not scenario.is_served:
        if isinstance(scenario.load, TunedBatches):
            raise ScenarioError(
                f"{where}: load: an all-reduce weighs all sites alike, so batches cannot be tuned; "
                "give [serve], or another pace than bsp"
            )
        return
    for key, value in (("awareness", scenario.awareness), ("deal", scenario.deal)):
        if value is not None:
            raise ScenarioError(
                f"{where}: {key}: where the model is served, its chunks stay with their trees; "
                "leave it out"
            )
    task, load = scenario.task, scenario.load
    if isinstance(load, TunedBatches) and not 1 <= task.batch_size <= load.most:
        raise ScenarioError(
            f"{where}: load.most: {load.most} samples where task.batch_size is {task.batch_size}; "
            "give a batch_size of 1 or more, and no smaller most"
        )


def _check_probes(scenario: Scenario, where: str) -> None:
    awareness = scenario.awareness
    if not isinstance(awareness, Passive):
        return
    probe_elements = awareness.probe_chunk_elements
    if awareness.estimator == "busy-period":
        if probe_elements is not None:
            raise ScenarioError(
                f"{where}: awareness.probe_chunk_elements: only the chunk-mean estimator has "
                "probes; leave it out"
            )
        return
    most = scenario.chunk_elements
    if most is not None and probe_elements is not None and probe_elements > most:
        raise ScenarioError(
            f"{where}: awareness.probe_chunk_elements: no chunk has {probe_elements} elements, for "
            f"chunk_elements is {most}, so nothing would be measured; give less"
        )


def check(scenario: Scenario, overlay: Overlay) -> None:
    """Check what only the overlay can tell: sites and links that are named, and every plan.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    try:
        script(scenario.fault, overlay, rounds=scenario.stop.rounds)
        compute_model(scenario, overlay)
    except (FaultError, ComputeError) as error:
        raise ScenarioError(str(error)) from None
    if scenario.serve is not None:
        names = {site.name for site in overlay.sites}
        if unknown := [name for name in scenario.serve.only if name not in names]:
            raise ScenarioError(f"serve.only: the overlay has no site {unknown[0]!r}")
        if not scenario.workers(overlay):
            raise ScenarioError("serve.only: it names every site; let one compute")
    for index, route in enumerate(scenario.routes):
        key = f"route[{index}]" if isinstance(scenario.route, tuple) else "route"
        try:
            plan_route(route, overlay)
        except (OverlayError, PlanError) as error:
            raise ScenarioError(f"{key}: {error}") from None


def make_pace(asked: Pace) -> paces.Pace:
    """Return a scenario's pace, fresh."""
    match asked:
        case Bsp():
            return paces.Bsp()
        case Asp():
            return paces.Asp()
        case Ssp(lead=lead):
            return paces.Ssp(lead)
        case Safa(fraction=fraction, lag_tolerance=lag_tolerance):
            return paces.Safa(fraction, lag_tolerance)
        case R2sp(relaxation=relaxation):
            return paces.R2sp(relaxation)
        case Waves(staleness_cost=staleness_cost):
            return paces.Waves(staleness_cost)


def make_load(asked: EqualBatches | TunedBatches, batch_size: int) -> paces.Load:
    """Return what sizes a scenario's batches, fresh."""
    if isinstance(asked, TunedBatches):
        return paces.Tuned(batch_size, asked.most)
    return paces.Equal(batch_size)


def compute_model(scenario: Scenario, overlay: Overlay) -> ComputeModel | None:
    """Return how long a scenario's computing takes on an overlay's sites; None if it says not.

    Raises:
        ComputeError: it names a site that the overlay has not got, or asks the impossible.
    """
    if scenario.compute is None:
        return None
    return ComputeModel(scenario.compute, [site.name for site in overlay.sites], scenario.seed)


def check_real(scenario: Scenario, overlay: Overlay, emulated: bool = False) -> None:
    """Check that a scenario asks for nothing that only a simulation has.

    Args:
        scenario, overlay: what is to run, and where.
        emulated: whether links are emulated, not held in the sender.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    if scenario.fault:
        raise ScenarioError(
            "fault: faults are scripted in simulation only; leave them out, or run "
            "`anabranch simulate`"
        )
    capped = [
        site.name
        for site in overlay.sites
        if site.uplink_bps is not None or site.downlink_bps is not None
    ]
    if scenario.shaped and capped and not emulated:
        raise ScenarioError(
            f"overlay: site {capped[0]} has a capped port, which a sender cannot keep; leave the "
            "caps out, say shaped = false, run with --emulate, or run `anabranch simulate`"
        )


def check_twin(scenario: Scenario) -> None:
    """Check that a scenario means the same in both worlds.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    if not scenario.shaped:
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
    """Check that a scenario says all that a simulation has to know.

    Raises:
        ScenarioError: names the key, and what to do.
    """
    if scenario.compute is None and scenario.task.batch_size:
        raise ScenarioError(
            "compute: a simulation cannot tell how long a step takes; give [compute] with "
            "samples_per_s"
        )


def encode(scenario: Scenario) -> str:
    """Return a scenario as text for other processes; ``decode`` reads it."""
    return msgspec.json.encode(scenario).decode()


def decode(text: str) -> Scenario:
    """Read what ``encode`` wrote."""
    return msgspec.json.decode(text, type=Scenario)


def plan_route(
    route: Route,
    overlay: Overlay,
    buffer_elements: int | None = None,
    chunk_elements: int = 1 << 16,
) -> Plan:
    """Plan a scenario's route on an overlay; see :func:`make_planner`.

    Raises:
        OverlayError: the route names a site that the overlay has not got.
        PlanError: there is no such plan.
    """
    return make_planner(route, overlay, buffer_elements, chunk_elements)(overlay, 1, None)


Planner = Callable[[Overlay, int, Plan | None], Plan]


def make_planner(
    route: Route,
    overlay: Overlay,
    buffer_elements: int | None = None,
    chunk_elements: int = 1 << 16,
) -> Planner:
    """Return what plans a route: called with an overlay, a version, and the plan before.

    Args:
        route: how aggregates travel.
        overlay: whose sites it names. Roots that are left to choose are chosen on it, once: a new
            root would need its part of the model moved to it (NetStorm, IV-B).

    Raises:
        OverlayError: the route names a site that the overlay has not got.
        PlanError: there is no such plan.
    """

    def root(name: str | None, plan: Callable[[Overlay], Plan]) -> int:
        return plan(overlay).trees[0].root if name is None else overlay.index(name)

    match route:
        case Star(hub=hub):
            at = root(hub, plans.star)
            return lambda network, version, _: plans.star(network, hub=at, version=version)
        case Balanced(root=name, arity=arity):
            at = root(name, lambda network: plans.balanced(network, arity=arity))
            return lambda network, version, _: plans.balanced(
                network, root=at, arity=arity, version=version
            )
        case Spanning(root=name):
            at = root(name, plans.spanning)
            return lambda network, version, _: plans.spanning(network, root=at, version=version)
        case Fapt(roots=roots):
            if isinstance(roots, tuple):
                chosen = [overlay.index(name) for name in roots]
            else:
                count = overlay.size if roots is None else roots
                chosen = [tree.root for tree in plans.fapt(overlay, roots=count).trees]
            return lambda network, version, _: plans.fapt(network, roots=chosen, version=version)
        case Packed():
            return lambda network, version, previous: plans.packed(
                network,
                size_bytes=None if buffer_elements is None else 4 * buffer_elements,
                chunk_bytes=4 * chunk_elements,
                version=version,
                previous=previous,
            )
        case FromFile(path=path):
            own = _read_plan(path)
            own.check_fits(overlay)
            return lambda network, version, _: replace(own, version=version)


def _read_plan(path: str) -> Plan:
    try:
        return plans.loads(Path(path).read_bytes())
    except (OSError, PlanError) as error:
        raise PlanError(f"{path}: {error}") from None
