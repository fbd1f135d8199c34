"""A user's own code in a scenario: find it, check it, and isolate it from that of other sites.

The sites of a simulation share one process, and so the global random generators of Python, NumPy
and torch. Each site's code gets its own state of these generators, and checkpoints hold it. While
the factory runs, every site seeds them alike, so that the models it draws begin equal.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import nearest
from anabranch.train.work import Context, State, Work, averaged_elements

if TYPE_CHECKING:
    from anabranch.train.optimisers import Update

Floats = npt.NDArray[np.float32]

_GENERATORS = "generators"
_METHODS = ("local_step", "apply", "evaluate", "state_dict", "load_state_dict")


class WorkError(ValueError):
    """A scenario's own code cannot be used; names the factory, and what is wrong."""


def make_own_work(factory: str, folder: Path, context: Context) -> OwnWork:
    """Return the work that a factory makes.

    Args:
        factory: ``module:function``.
        folder: where the module is looked for before the usual places.
        context: handed to the factory.

    Raises:
        WorkError: there is no such factory, it fails, or what it makes is no work.
    """
    module_name, _, function_name = factory.partition(":")
    where = f"task.factory: {factory}"
    module = _import(module_name, folder, where)
    make = getattr(module, function_name, None)
    if make is None:
        near = nearest(function_name, vars(module)) or "define it there"
        raise WorkError(f"{where}: {module.__file__} has no {function_name}; {near}")
    if not callable(make):
        raise WorkError(f"{where}: that is {type(make).__name__}, not a function; name a function")
    generators = _Generators(context.seed)
    with generators.in_use(), _blaming(where, "the factory"):
        work = make(context)
    generators.seed(context.seed, context.site)
    kind = OwnWork
    if getattr(work, "model", None) is not None and hasattr(work, "make_rule"):
        kind = ServableOwnWork
    return kind(where, work, generators)


def _import(name: str, folder: Path, where: str) -> ModuleType:
    """Return a module, from the folder if it is there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    here = PathFinder.find_spec(name.partition(".")[0], [str(folder)])
    try:
        with _blaming(where, f"importing {name}"):
            module = importlib.import_module(name)
    except WorkError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and name.startswith(cause.name):
            raise WorkError(
                f"{where}: there is no module {cause.name}, neither in {folder} nor among what is "
                "installed; put it beside the scenario, or say in task.folder where it is"
            ) from None
        raise
    loaded = sys.modules[name.partition(".")[0]]
    if here is not None and here.origin != getattr(loaded.__spec__, "origin", None):
        raise WorkError(
            f"{where}: {here.origin} is hidden by {loaded.__name__} of {loaded.__file__}; give it "
            "another name"
        )
    return module


@contextmanager
def _blaming(where: str, what: str) -> Iterator[None]:
    """Turn an exception of the user's code into an error that names the code and its line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__ and not frame.filename.startswith("<")
        ]
        at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        raise WorkError(f"{where}: {what} failed{at}: {type(error).__name__}: {error}") from error


class OwnWork:
    """A user's work as a `anabranch.train.work.Work`, checked, with its own random generators."""

    def __init__(self, where: str, work: Work, generators: _Generators) -> None:
        self._where = where
        self._work = work
        self._generators = generators
        name = type(work).__name__
        if missing := [each for each in _METHODS if not callable(getattr(work, each, None))]:
            raise self.error(
                f"returned {name}, which has no method {missing[0]}; give it "
                f"{', '.join(_METHODS)} and buffer"
            )
        if not hasattr(work, "buffer"):
            raise self.error(f"returned {name}, which has no buffer; give it a flat float32 array")
        self._elements: int | None = None
        self._elements = len(self.buffer)
        self.state_dict()

    def error(self, what: str) -> WorkError:
        """Return an error that names the factory."""
        return WorkError(f"{self._where}: {what}")

    @property
    def own_state(self) -> tuple[str, ...]:
        """The entries of its state that differ between sites."""
        return (*getattr(self._work, "own_state", ()), _GENERATORS)

    @property
    def buffer(self) -> Floats:
        """See :class:`anabranch.train.work.Work`."""
        return self._checked(self._work.buffer, "buffer")

    def _checked(self, array: Floats, name: str) -> Floats:
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != np.float32
            or array.ndim != 1
            or not array.flags.c_contiguous
            or not array.flags.writeable
            or not array.size
        ):
            found = type(array).__name__
            if isinstance(array, np.ndarray):
                found = f"a {array.dtype} array of shape {array.shape}"
            raise self.error(
                f"{name} must be a NumPy array, flat, float32, contiguous and writable, not {found}"
            )
        if self._elements not in (None, len(array)):
            raise self.error(f"{name} has {len(array)} elements, not {self._elements} as at first")
        return array

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        with self._generators.in_use(), _blaming(self._where, method):
            yield

    def local_step(self, samples: int) -> float | None:
        """See :class:`anabranch.train.work.Work`."""
        with self._calling("local_step"):
            found = self._work.local_step(samples)
            loss = None if found is None else float(found)
        if loss is not None and not math.isfinite(loss):
            raise self.error(f"local_step returned loss {loss}; lower the learning rate")
        return loss

    def apply(self, round: int) -> int | None:
        """See :class:`anabranch.train.work.Work`."""
        with self._calling("apply"):
            checksum = self._work.apply(round)
        if checksum is not None and not (isinstance(checksum, int) and 0 <= checksum < 1 << 64):
            raise self.error(
                f"apply returned {checksum!r}; give a checksum in [0, 2**64), such as "
                "anabranch.train.checksum computes, or None"
            )
        return checksum

    def evaluate(self) -> float:
        """See :class:`anabranch.train.work.Work`."""
        before = self._generators.state
        with self._calling("evaluate"):
            figure = float(self._work.evaluate())
        self._generators.state = before  # evaluations do not change the training's draws
        if not math.isfinite(figure):
            raise self.error(f"evaluate returned {figure}; give a finite number")
        return figure

    def state_dict(self) -> State:
        """See :class:`anabranch.train.work.Work`."""
        from anabranch_lab.tasks.states import StateError, check_state

        with self._calling("state_dict"):
            state = self._work.state_dict()
        if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
            raise self.error(
                "state_dict must return a dict whose entry 'model' has the weights by name, such "
                "as module.state_dict()"
            )
        if _GENERATORS in state:
            raise self.error(f"state_dict returns {_GENERATORS!r}, which is taken; rename it")
        state = {**state, "model": dict(state["model"])}  # an OrderedDict, from torch
        try:
            check_state(state)
        except StateError as error:
            raise self.error(f"state_dict: {error}") from None
        return {**state, _GENERATORS: self._generators.state}

    def load_state_dict(self, state: State) -> None:
        """See :class:`anabranch.train.work.Work`."""
        state = dict(state)
        self._generators.state = state.pop(_GENERATORS)
        with self._calling("load_state_dict"):
            self._work.load_state_dict(state)


class ServableOwnWork(OwnWork):
    """A user's work whose model servers can hold."""

    def __init__(self, where: str, work: Any, generators: _Generators) -> None:
        super().__init__(where, work, generators)
        self.model: Floats = self._checked(work.model, "model")
        self.make_rule: Callable[[int], Update] | None = work.make_rule
        self.averaged_elements = averaged_elements(work)
        if not 0 <= self.averaged_elements <= len(self.model):
            raise self.error(
                f"averaged_elements is {self.averaged_elements}, must be from 0 to "
                f"{len(self.model)}, the model's length"
            )


class _Generators:
    """The state of the global random generators for one site's code."""

    state: State

    def __init__(self, *seed: int) -> None:
        self.seed(*seed)

    def seed(self, *seed: int) -> None:
        """Seed all generators anew."""
        with self.in_use(entering=False):
            for_python, for_numpy, for_torch = np.random.SeedSequence(seed).generate_state(3)
            random.seed(int(for_python))
            np.random.seed(for_numpy)
            _torch().random.default_generator.manual_seed(int(for_torch))

    @contextmanager
    def in_use(self, entering: bool = True) -> Iterator[None]:
        """Use this state in the block, and restore the process's own state afterwards."""
        before = _states()
        try:
            if entering:
                _set_states(self.state)
            yield
        finally:
            self.state = _states()
            _set_states(before)


def _torch() -> ModuleType:
    import torch

    return torch


def _states() -> State:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": _torch().random.get_rng_state(),
    }


def _set_states(states: State) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    _torch().random.set_rng_state(states["torch"])
