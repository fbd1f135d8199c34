"""A scenario as a whole: one answer to each question, the task, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from anabranch._typed_toml import LONGEST_S, Positive, Seconds, Table
from anabranch.cohort import Clients
from anabranch.fleet import Compute, ComputeModel
from anabranch.log.events import ReachedBy
from anabranch.merge import AnyMerge, Mean
from anabranch.overlay import Overlay, is_doubtful_latency
from anabranch.pace import AnyLoad, AnyPace, Bsp, EqualBatches
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
    """When a run ends: at whichever comes first. The round in progress is always finished.

    Args:
        rounds: how many synchronisations at most; where sites gossip, how many times each sends.
        after_s: seconds since the run began; None for no limit.
        at_target: once the task's ``target_accuracy`` has been seen.
        reached_by: whose model counts where sites' models differ: the ``first`` that reaches the
            target, the ``mean`` over the sites, or ``all``. Times and bytes to the target are told
            by it too.
    """

    rounds: Positive
    after_s: Seconds | None = None
    at_target: bool = False
    reached_by: ReachedBy = "first"


class Simulation(Table, frozen=True, kw_only=True):
    """What only a simulation has to be told.

    Args:
        tensors: whether chunks hold numbers (``real``) or have only sizes (``sizes``), which is
            much faster, and trains nothing: a warning names the keys for training that are given.
            None is ``real`` for training and ``sizes`` for exchanges.
        control_latency_s: one way between the scheduler and each site, seconds; None for the median
            latency of the overlay's links.
    """

    tensors: Literal["real", "sizes"] | None = None
    control_latency_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] | None = None


LEAST_SITES = 2

_Rate = Annotated[float, Meta(gt=0, le=1e15)]
# Not tuple[_Rate, _Rate]: beside a number, msgspec 0.22 writes over memory that is not its own.
_Bounds = Annotated[tuple[_Rate, ...], Meta(min_length=2, max_length=2)]


class Graph(Table, frozen=True, kw_only=True):
    """How a graph file, a table or a folder of measurements is read, and what it does not say.

    See `anabranch.overlay.read_graph` and `anabranch.overlay.read_table`.

    Args:
        rate_bps: of links without a rate, bit/s; or two bounds, between which each direction's
            is drawn with the scenario's seed.
        default_latency_s: of links for which the file has none, seconds.
        largest_part: of a graph in several parts, whether the largest is kept and the others are
            dropped.
        capacity, latency: the attribute of a graph's edges that holds it, as ``bandwidth:Mbit/s``;
            ``*`` for any of the usual names.
        latencies: another table or folder, which holds latencies, from the scenario's folder.
    """

    rate_bps: _Rate | _Bounds | None = None
    default_latency_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] | None = None
    largest_part: bool = False
    capacity: str = "*"
    latency: str = "*"
    latencies: str | None = None


class Scenario(Table, frozen=True, kw_only=True):
    """What to run, once for each route. The six questions are route to sampling.

    Args:
        label: for titles; each plan's own label if empty.
        overlay: a built-in overlay's name, or the path of a file, from the scenario's folder.
        graph: how a graph file, a table or a folder of measurements is read; None for others.
        route: where aggregates travel, packed trees if not given; of a list, each is a run of its
            own.
        pace: when a participant may proceed.
        period: how often they talk; where the model is served, how many local steps a worker makes
            between pull and push, which then says how far they went.
        average: what is averaged where the period has sites make local steps; None for the mean of
            whole models, which steps wait for. Where the model is served, its outer optimiser is
            the servers'.
        gossip: which neighbours each site sends its model to. Sites use what comes instead of
            averages of all. None averages, or all-reduces, over all sites.
        merge: what an update weighs.
        load: how much work each does.
        sampling: which of its samples each draws.
        task: what the sites do.
        stop: when the run ends.
        compute: how long computing takes. In simulation that is all it takes; with real
            processes, a site that is done sooner waits.
        fault: what goes wrong, and when. Real runs have the faults of links where ``shaped``, and
            kills, pauses and sleep; the rest is for simulations.
        simulation: what only a simulation has to be told.
        deal: how chunks are dealt to the trees of the route; None for ``adaptive`` on packed trees
            and ``by-share`` on other routes.
        awareness: how the scheduler learns of the network while the run goes on, and plans again;
            None keeps the first plan.
        auxiliary: paths that help the trees' links; None for none.
        serve: where the model is while workers push and pull; None all-reduces under ``bsp``, and
            lets all sites compute under other paces.
        clients: who is registered, where a worker stands for another client with each update; None
            where each stands for itself.
        on_loss: what becomes of all-reduces when a site or a link is lost: they are ``complete``d
            among those that still reach one another, or begun again among them (``retry``), and
            sites that are left out come back once they can; or the run ends (``abort``).
        wait_s: how long a link or a site that is silent is waited for before it counts as lost,
            seconds. None is 15 s between sites and 5 s for the scheduler, or longer where
            connections have been silent before, and in simulation for ever.
        least_sites: with fewer left than these it ends in any case.
        seed: of every random choice.
        chunk_elements: the most elements of a chunk; None for 262,144, and on packed trees for a
            thousandth of the buffer, between 16,384 and 65,536; or more, where a site would spend
            more than a quarter of a core on messages.
        congestion_control: what lanes between machines ask the kernel for; None for bbr, and cubic
            on links of less than 1 ms that lose nothing. Where it may not be set, each lane takes
            several connections instead.
        sample_every_s: how often a site writes down what its links carried, seconds.
        shaped: hold each link to the overlay's rate and latency; None does where all processes are
            on this machine and stand for sites, and not where their links are real. The
            simulation's links always keep them.
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
        """Sentences on values that are possible and seldom meant."""
        latency_s = self.simulation.control_latency_s
        if latency_s is None or not is_doubtful_latency(latency_s):
            return ()
        return (f"simulation.control_latency_s: {latency_s:g} s; was it meant as ms?",)

    @property
    def routes(self) -> tuple[AnyPlanner, ...]:
        """The routes, each of which is a run of its own."""
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
        """Whether each site's optimiser uses its own gradients, so that models differ meanwhile."""
        averages = self.period.averages and not self.is_served
        return averages or self.gossip is not None

    def steps_of_update(self, held: int, samples: int) -> int:
        """Return how many local steps a worker makes between pull and push.

        Args:
            held: samples of the worker, or of the client it stands for; any where that is unknown.
            samples: of a step.
        """
        if self.is_served and isinstance(self.period, EveryEpoch):
            return self.period.steps(held, samples)
        return self.period.steps if self.is_served and isinstance(self.period, Every) else 1

    def control_latency_s(self, overlay: Overlay) -> float:
        """Return how far the scheduler of a simulation is from each site, one way, seconds."""
        given = self.simulation.control_latency_s
        if given is not None:
            return given
        return median([link.latency_s for link in overlay.links] or [0.0])  # one site has no link

    def beside_its_scheduler(self) -> Scenario:
        """Return it with the scheduler next to each site, unless it says how far that is."""
        if self.simulation.control_latency_s is not None:
            return self
        beside = msgspec.structs.replace(self.simulation, control_latency_s=0.0)
        return msgspec.structs.replace(self, simulation=beside)

    def workers(self, overlay: Overlay) -> list[int]:
        """Return the sites that compute, by index."""
        return self.workers_named([site.name for site in overlay.sites])

    def workers_named(self, names: Sequence[str]) -> list[int]:
        """Return those of sites with such names that compute, by index."""
        return (self.serve or Serve()).workers(names)

    def runs(self) -> tuple[Scenario, ...]:
        """Return one scenario for each route."""
        return tuple(msgspec.structs.replace(self, route=route) for route in self.routes)


def compute_model(scenario: Scenario, overlay: Overlay) -> ComputeModel | None:
    """Return how long a scenario's computing takes on an overlay's sites; None if it says not.

    Where workers stand for clients, it is by client, from ``client-0`` on.

    Raises:
        ComputeError: it names a site that the overlay has not got, or asks the impossible.
    """
    if scenario.compute is None:
        return None
    names = [site.name for site in overlay.sites]
    if scenario.clients is not None:
        names = [f"client-{number}" for number in range(scenario.clients.registered)]
    return ComputeModel(scenario.compute, names, scenario.seed)


def script_of(scenario: Scenario, overlay: Overlay) -> tuple[Scripted, ...]:
    """Return what a scenario's faults do on an overlay; the same wherever it is asked.

    Raises:
        FaultError: one cannot happen as it is written; see `script`.
    """
    return script(scenario.fault, overlay, rounds=scenario.stop.rounds, seed=scenario.seed)


def with_compute_times(route: ForestRoute, scenario: Scenario, overlay: Overlay) -> ForestRoute:
    """Return a forest that knows how long a scenario's workers compute, unless it says itself."""
    if route.compute_s is not None:
        return route
    names = {site: overlay.sites[site].name for site in scenario.workers(overlay)}
    model, samples = compute_model(scenario, overlay), scenario.task.batch_size
    if model is None:
        return route.of_workers(names.values())
    times = {name: model.mean_s(site, samples) for site, name in names.items()}
    return msgspec.structs.replace(route, compute_s=times)


def encode(scenario: Scenario) -> str:
    """Return a scenario as JSON text: two are the same where their texts are."""
    return msgspec.json.encode(scenario).decode()
