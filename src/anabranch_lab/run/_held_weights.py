"""The part of the model that one server holds, and how servers join the parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.partition import Rule
from anabranch.plan import Plan, deal
from anabranch.train.optimisers import Update
from anabranch.train.work import ServableWork


class WeightsError(ValueError):
    """Weights that cannot be put together; names the server whose part is missing."""


class HeldWeights:
    """The part of a served model that one site holds; empty if it is the root of no tree.

    `make_rule` wraps the work's rule, and so learns which array of parameters the server changes.

    Args:
        work: this site's.
        plan: of the run.
        chunk_elements: the most elements of a chunk.
        site: this site's index.
    """

    def __init__(self, work: ServableWork, plan: Plan, chunk_elements: int, site: int) -> None:
        self._work = work
        self._site = site
        self._servers = sorted({tree.root for tree in plan.trees})
        self._places = {
            server: [
                slice(chunk.start, chunk.stop)
                for chunk in deal(plan, len(work.model), chunk_elements)
                if plan.trees[chunk.tree].root == server
            ]
            for server in self._servers
        }
        self._held: Floats | None = None  # None before the first step: the initial model is valid

    def make_rule(self, elements: int) -> Rule:
        """Return the rule of the work, for this site's part of the model."""
        assert self._work.make_rule is not None
        update: Update = self._work.make_rule(elements)

        def step(parameters: Floats, gradients: Floats, scale: float) -> None:
            self._held = parameters
            update(parameters, gradients, scale)

        return step

    @property
    def is_whole(self) -> bool:
        """Whether this site holds all of the model."""
        return self._servers == [self._site]

    def show(self, model: Floats) -> None:
        """Copy a model into the work's."""
        self._work.model[:] = model

    def whole(self) -> Floats:
        """Return a copy of the model, all of which this site holds."""
        assert self.is_whole
        model, start = np.empty_like(self._work.model), 0
        held = self._parameters()
        for place in self._places[self._site]:
            stop = start + place.stop - place.start
            model[place] = held[start:stop]
            start = stop
        return model

    def leave(self, path: Path) -> None:
        """Write this site's part beside the final weights, if there is more than one part."""
        if self._site in self._servers and len(self._servers) > 1:
            from anabranch_lab.tasks.states import save_state

            save_state(_part(path, self._site), {"parameters": self._parameters()}, {})

    def gather(self, path: Path, names: Sequence[str]) -> None:
        """Join all parts into the final weights, at the first server only.

        Args:
            path: the file of the final weights.
            names: of the sites.

        Raises:
            WeightsError: a part is missing or damaged.
        """
        from anabranch_lab.tasks.states import StateError, load_state, save_weights

        if self._site != self._servers[0]:
            return
        model = np.empty_like(self._work.model)
        for server in self._servers:
            if server == self._site:
                held = self._parameters()
            else:
                try:
                    held = load_state(_part(path, server))["parameters"]
                except StateError as error:
                    raise WeightsError(
                        f"the part of the weights that {names[server]} serves is missing: {error}; "
                        "let --weights be on a disk that all servers share"
                    ) from None
            start = 0
            for place in self._places[server]:
                stop = start + place.stop - place.start
                model[place] = held[start:stop]
                start = stop
        self._work.model[:] = model
        save_weights(path, self._work.state_dict()["model"])
        for server in self._servers:
            _part(path, server).unlink(missing_ok=True)

    def _parameters(self) -> Floats:
        if self._held is not None:
            return self._held
        return np.concatenate([self._work.model[place] for place in self._places[self._site]])


def _part(path: Path, server: int) -> Path:
    return path.with_name(f"{path.stem}.part-{server}{path.suffix}")
