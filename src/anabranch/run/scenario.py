"""A scenario: one TOML file that describes a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch._typed_toml import Table, TomlError, decode_toml
from anabranch.overlay import Overlay
from anabranch.plan import Plan


class ScenarioError(ValueError):
    """A scenario that cannot be run; the message names the file, the key and the fix."""


_Positive = Annotated[int, Meta(ge=1)]


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


Route = Star | Balanced | Spanning | Fapt


class Train(Table, frozen=True, kw_only=True, tag_field="kind", tag="train"):
    """Train a model: every step, all sites average their gradients (BSP).

    Args:
        data: ``digits``, ``mnist`` or ``fashion-mnist``.
        model: ``softmax``, ``mlp``, ``lenet-5`` or ``alexnet``.
        hidden: widths of the mlp's hidden layers; its own choice if empty.
        optimiser: ``sgd`` or ``adam``.
        learning_rate: step size.
        momentum: of sgd.
        batch_size: samples a site takes each step.
        evaluate_every: rounds between two looks at the held-out data.
        target_accuracy: what time-to-accuracy is measured to; None for no target.
    """

    data: str = "digits"
    model: str = "mlp"
    hidden: tuple[_Positive, ...] = ()
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Meta(gt=0)]
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    batch_size: _Positive = 32
    evaluate_every: _Positive = 10
    target_accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None


class Exchange(Table, frozen=True, kw_only=True, tag_field="kind", tag="exchange"):
    """Exchange a buffer and compute nothing; every round's mean is checked against the exact one.

    Args:
        profile: the model whose parameter count the buffer has, such as ``alexnet``; or
        elements: its length.
    """

    profile: str | None = None
    elements: _Positive | None = None


class Scenario(Table, frozen=True, kw_only=True):
    """One run.

    Args:
        label: for titles; the plan's own label if empty.
        overlay: a built-in overlay's name, or the path of a file, from the scenario's folder.
        route: where aggregates travel.
        task: what the sites do.
        rounds: how many synchronisations.
        seed: of every random choice.
        chunk_elements: the most elements of a chunk.
        shaped: hold each link to the overlay's rate and latency; for one machine only.
    """

    overlay: str
    route: Route
    task: Train | Exchange
    rounds: _Positive
    label: str = ""
    seed: Annotated[int, Meta(ge=0)] = 0
    chunk_elements: _Positive = 1 << 18
    shaped: bool = True


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
    scenario = loads(text, str(path))
    source = Path(path.parent, scenario.overlay)
    return scenario, overlays.load(source if source.is_file() else scenario.overlay)


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
    if isinstance(task, Exchange) and (task.profile is None) == (task.elements is None):
        raise ScenarioError(f"{where}: task: give either profile or elements")
    return scenario


def encode(scenario: Scenario) -> str:
    """Return a scenario as text for other processes; ``decode`` reads it."""
    return msgspec.json.encode(scenario).decode()


def decode(text: str) -> Scenario:
    """Read what ``encode`` wrote."""
    return msgspec.json.decode(text, type=Scenario)


def plan_route(route: Route, overlay: Overlay) -> Plan:
    """Plan a scenario's route on an overlay.

    Raises:
        OverlayError: the route names a site that the overlay has not got.
        PlanError: there is no such plan.
    """

    def site(name: str | None) -> int | None:
        return None if name is None else overlay.index(name)

    match route:
        case Star(hub=hub):
            return plans.star(overlay, hub=site(hub))
        case Balanced(root=root, arity=arity):
            return plans.balanced(overlay, root=site(root), arity=arity)
        case Spanning(root=root):
            return plans.spanning(overlay, root=site(root))
        case Fapt(roots=None):
            return plans.fapt(overlay, roots=overlay.size)
        case Fapt(roots=int() as count):
            return plans.fapt(overlay, roots=count)
        case Fapt(roots=names):
            assert isinstance(names, tuple)
            return plans.fapt(overlay, roots=[overlay.index(name) for name in names])
