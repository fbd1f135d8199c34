"""A scenario as a whole: one answer to each question, the task, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from anabranch._typed_toml import Positive, Seconds, SecondsFromZero, Table
from anabranch.cohort import Clients
from anabranch.fleet import Compute, ComputeModel
from anabranch.log.events import ReachedBy
from anabranch.merge import AnyMerge, Mean
from anabranch.overlay import Overlay, is_doubtful_latency
from anabranch.pace import AnyLoad, AnyPace, Bsp, EqualBatches, StatedBatches
from anabranch.period import AnyPeriod, Every, EveryEpoch, EveryStep, Gossip
from anabranch.plan import AnyPlanner, Auxiliary, ForestRoute, Packed
from anabranch.scheduler.awareness import AnyAwareness
from anabranch.scheduler.deal import Adaptive, AnyDeal, adaptive_of
from anabranch.scheduler.paced import Serve
from anabranch.site.neighbourhood import MOST_CHUNK_ELEMENTS
from anabranch.train.averaging import Average
from anabranch_lab.run._faults import Fault, Scripted, script
from anabranch_lab.run.scenario.tasks import Task
from anabranch_lab.tasks.sampling import AnySampling, Shuffled


class Stop(Table, frozen=True, kw_only=True):
    """When a run ends: at whichever limit comes first. The round in progress is always finished.

    Args:
        rounds: how many synchronisations at most; where sites gossip, how many times each sends.
        after_s: seconds since the run began; None: no limit.
        at_target: end once an evaluation reaches the task's ``target_accuracy``.
        reached_by: where sites' models differ, which models must reach the target: the ``first``
            to reach it, their ``mean`` over the sites, or ``all``. Times and bytes to the target
            follow it too.
        window_s: an evaluation counts as the mean of those of its model in the latest so many
            seconds, so that a single high one is not taken for the target; 0: as itself.
    """

    rounds: Positive
    after_s: Seconds | None = None
    at_target: bool = False
    reached_by: ReachedBy = "first"
    window_s: SecondsFromZero = 0.0


class Simulation(Table, frozen=True, kw_only=True):
    """Settings that only a simulation needs.

    Args:
        tensors: whether chunks hold numbers (``real``) or have only sizes (``sizes``). Sizes alone
            are much faster and train nothing; a warning names the keys of training that are given.
            None: ``real`` for training and ``sizes`` for exchanges.
        control_latency_s: one way between the scheduler and each site, seconds; None: the median
            latency of the overlay's links.
    """

    tensors: Literal["real", "sizes"] | None = None
    control_latency_s: SecondsFromZero | None = None


LEAST_SITES = 2

_Rate = Annotated[float, Meta(gt=0, le=1e15)]
# Not tuple[_Rate, _Rate]: beside a number, msgspec 0.22 writes over memory that is not its own.
_Bounds = Annotated[tuple[_Rate, ...], Meta(min_length=2, max_length=2)]


class Graph(Table, frozen=True, kw_only=True):
    """How to read a graph file, a table or a folder of measurements, and values that it lacks.

    See `anabranch.overlay.read_graph` and `anabranch.overlay.read_table`.

    Args:
        rate_bps: of links without a rate, bit/s; or two bounds, between which each direction's
            is drawn with the scenario's seed.
        default_latency_s: of links without a latency in the file, seconds.
        largest_part: of a graph in several parts, keep the largest and drop the others.
        capacity, latency: the attribute of a graph's edges that holds it, as ``bandwidth:Mbit/s``;
            ``*``: any of the usual names.
        latencies: another table or folder with latencies; its path starts at the scenario's folder.
    """

    rate_bps: _Rate | _Bounds | None = None
    default_latency_s: SecondsFromZero | None = None
    largest_part: bool = False
    capacity: str = "*"
    latency: str = "*"
    latencies: str | None = None


class Scenario(Table, frozen=True, kw_only=True):
    """What to run, once for each route. The six questions are route to sampling.

    Args:
        label: for titles; empty: each plan's own label.
        overlay: a built-in overlay's name, or the path of a file, from the scenario's folder.
        graph: how to read a graph file, a table or a folder of measurements; None for others.
        route: where aggregates travel; packed trees if not given. A list is a run for each route.
        pace: when a site or worker may proceed.
        period: how often the sites exchange. Where the model is served: how many local steps a
            worker makes between pull and push; it then pushes how far they moved the model.
        average: what sites average, where the period has them make local steps. None: the mean of
            whole models, which steps wait for. Where the model is served, the servers use its outer
            optimiser.
        gossip: which neighbours each site sends its model to. Sites merge the models that come
            instead of averages of all. None: average, or all-reduce, over all sites.
        merge: what an update weighs.
        load: how much work each site does.
        sampling: which of its samples each site draws.
        task: what the sites do.
        stop: when the run ends.
        compute: how long computing takes. In simulation computing takes exactly this time. A real
            process that is done sooner waits.
        fault: what goes wrong, and when. Real runs carry out faults of links where ``shaped``, and
            kills, pauses and sleep; the rest is for simulations.
        simulation: settings that only a simulation needs.
        deal: how chunks are dealt to the trees of the route; None: ``adaptive`` on packed trees
            and ``by-share`` on other routes.
        awareness: how the scheduler measures the network during the run, and plans again; None:
            keep the first plan.
        auxiliary: paths that help the trees' links; None: no such paths.
        serve: which sites hold the model while workers push and pull; None: all-reduce under
            ``bsp``; under other paces, all sites compute.
        clients: the registered clients, where a worker stands for another client with each update;
            None: each worker stands for itself.
        on_loss: what happens to all-reduces when a site or a link is lost. ``complete`` completes
            them among the sites that still reach one another; ``retry`` begins them again among
            these. With both, sites that are left out come back once they can. ``abort`` ends the
            run.
        wait_s: how long a link or a site may be silent before it counts as lost, seconds. None:
            15 s between sites and 5 s for the scheduler, or longer where connections have been
            silent before; in simulation, no limit.
        least_sites: with fewer sites left than these the run ends in any case.
        seed: of every random choice.
        chunk_elements: the most elements of a chunk. None: 262,144, and on packed trees a
            thousandth of the buffer, between 16,384 and 65,536; or more, where a site would spend
            more than a quarter of a core on messages.
        congestion_control: what lanes between machines ask the kernel for. None: bbr, and cubic
            on links of less than 1 ms that lose nothing. Where it may not be set, each lane takes
            several connections instead.
        sample_every_s: how often a site logs the bytes that its links carried, seconds.
        shaped: hold each link to the overlay's rate and latency. None: yes where all processes
            run on this machine and stand for sites, no where their links are real. The
            simulation's links are always held.
    """

    label: str = ""
    overlay: str
    graph: Graph | None = None
    route: AnyPlanner | tuple[AnyPlanner, ...] = Packed()
    pace: AnyPace = Bsp()
    period: AnyPeriod = EveryStep()
    average: Average | None = None
    gossip: Gossip | None = None
    merge: AnyMerge = Mean()
    load: AnyLoad = EqualBatches()
    sampling: AnySampling = Shuffled()
    task: Task
    stop: Stop
    compute: Compute | None = None
    fault: tuple[Fault, ...] = ()
    simulation: Simulation = Simulation()
    deal: AnyDeal | None = None
    awareness: AnyAwareness | None = None
    auxiliary: Auxiliary | None = None
    serve: Serve | None = None
    clients: Clients | None = None
    on_loss: Literal["complete", "retry", "abort"] = "abort"
    wait_s: Seconds | None = None
    least_sites: Positive = LEAST_SITES
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    chunk_elements: Annotated[int, Meta(ge=1, le=MOST_CHUNK_ELEMENTS)] | None = None
    congestion_control: Literal["bbr", "cubic"] | None = None
    sample_every_s: Seconds = 0.5
    shaped: bool | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings about values that are valid and seldom intended."""
        latency_s = self.simulation.control_latency_s
        if latency_s is None or not is_doubtful_latency(latency_s):
            return ()
        return (f"simulation.control_latency_s: {latency_s:g} s; was it meant as ms?",)

    @property
    def routes(self) -> tuple[AnyPlanner, ...]:
        """The routes; each is a separate run."""
        return self.route if isinstance(self.route, tuple) else (self.route,)

    @property
    def adaptive(self) -> Adaptive | None:
        """How a scenario with one route dispatches chunks during a round; None if it does not."""
        return None if self.is_served else adaptive_of(self.deal, self.routes[0].deep)

    @property
    def is_served(self) -> bool:
        """Whether the roots of the route hold the model, and workers push and pull."""
        return self.serve is not None or not isinstance(self.pace, Bsp)

    @property
    def computes_ahead(self) -> bool:
        """Whether workers compute while their last update is on its way."""
        return self.serve is not None and self.serve.ahead

    @property
    def has_local_steps(self) -> bool:
        """Whether each site's optimiser uses the site's gradients, so that models differ."""
        averages = self.period.averages and not self.is_served
        return averages or self.gossip is not None

    def steps_of_update(self, held: int, samples: int) -> int:
        """Return how many local steps a worker makes between pull and push.

        Args:
            held: samples of the worker, or of the client it stands for; any value if unknown.
            samples: of a step.
        """
        if self.is_served and isinstance(self.period, EveryEpoch):
            return self.period.steps(held, samples)
        return self.period.steps if self.is_served and isinstance(self.period, Every) else 1

    def samples_of(self, name: str) -> int:
        """Return how many samples a site's first batch has, by the site's name."""
        samples = self.task.batch_size
        load = self.load
        return load.of_site(name, samples) if isinstance(load, StatedBatches) else samples

    @property
    def scales_steps(self) -> bool:
        """Whether a site's batch scales its steps: letters weigh only by push-sum."""
        return self.gossip is not None and self.gossip.rule != "push-sum"

    def share_of_batch(self, names: Sequence[str], site: int) -> float:
        """Return a site's weight by the samples of its batch; the mean over all sites is 1.

        Args:
            names: of all sites.
            site: by index; none has servers.
        """
        if not isinstance(self.load, StatedBatches):
            return 1.0  # all first batches have as many samples
        samples = [self.samples_of(name) for name in names]
        return samples[site] * len(samples) / sum(samples) if sum(samples) else 1.0

    def control_latency_s(self, overlay: Overlay) -> float:
        """Return the one-way latency between a simulation's scheduler and each site, seconds."""
        given = self.simulation.control_latency_s
        if given is not None:
            return given
        return median([link.latency_s for link in overlay.links] or [0.0])  # one site has no link

    def beside_its_scheduler(self) -> Scenario:
        """Return the scenario with a control latency of 0, unless it gives one."""
        if self.simulation.control_latency_s is not None:
            return self
        beside = msgspec.structs.replace(self.simulation, control_latency_s=0.0)
        return msgspec.structs.replace(self, simulation=beside)

    def workers(self, overlay: Overlay) -> list[int]:
        """Return the sites that compute, by index."""
        return self.workers_named(overlay.names)

    def workers_named(self, names: Sequence[str]) -> list[int]:
        """Return the indices, among sites with these names, of those that compute."""
        return (self.serve or Serve()).workers(names)

    def runs(self) -> tuple[Scenario, ...]:
        """Return one scenario for each route."""
        return tuple(msgspec.structs.replace(self, route=route) for route in self.routes)


def compute_model(scenario: Scenario, overlay: Overlay) -> ComputeModel | None:
    """Return how long a scenario's computing takes on an overlay's sites; None: it does not say.

    Where workers stand for clients, the model is by client, from ``client-0`` on.

    Raises:
        ComputeError: ``[compute]`` names a site that the overlay lacks, or asks the impossible.
    """
    if scenario.compute is None:
        return None
    names: Sequence[str] = overlay.names
    if scenario.clients is not None:
        names = [f"client-{number}" for number in range(scenario.clients.registered)]
    return ComputeModel(scenario.compute, names, scenario.seed)


def script_of(scenario: Scenario, overlay: Overlay) -> tuple[Scripted, ...]:
    """Return what a scenario's faults do on an overlay; every process gets the same script.

    Raises:
        FaultError: a fault cannot happen as it is written; see `script`.
    """
    return script(scenario.fault, overlay, rounds=scenario.stop.rounds, seed=scenario.seed)


def with_compute_times(route: ForestRoute, scenario: Scenario, overlay: Overlay) -> ForestRoute:
    """Return a forest with the compute times of a scenario's workers, unless it has its own."""
    if route.compute_s is not None:
        return route
    names = {site: overlay.sites[site].name for site in scenario.workers(overlay)}
    model = compute_model(scenario, overlay)
    if model is None:
        return route.of_workers(names.values())
    times = {name: model.mean_s(site, scenario.samples_of(name)) for site, name in names.items()}
    return msgspec.structs.replace(route, compute_s=times)


def encode(scenario: Scenario) -> str:
    """Return a scenario as JSON text; equal scenarios have equal texts."""
    return msgspec.json.encode(scenario).decode()
