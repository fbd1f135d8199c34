"""The work of ``task.kind = "train"``, which also writes its losses and gradients to a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from anabranch.train.work import Context, ServableWork
from anabranch_lab.run.scenario import Scenario
from anabranch_lab.run.work import make_work, servable

Floats = npt.NDArray[np.float32]


def make(context: Context) -> Watched:
    """Return the work of a scenario's site.

    Args:
        context: its options are ``scenario``, one that trains, as ``run.scenario.encode`` writes
            it; ``sites``, the indices of the watched sites; and ``folder``, for their files.
    """
    scenario = msgspec.json.decode(context.options["scenario"], type=Scenario)
    names = tuple(map(str, range(context.sites)))
    assigned = make_work(scenario, context.site, names, context.data_dir, sizes_only=False)
    watched = context.site in context.options["sites"]
    path = Path(context.options["folder"], f"{context.site}")
    return Watched(servable(assigned.work, scenario), path if watched else None)


def read(folder: Path, site: int, elements: int) -> tuple[Floats, Floats]:
    """Return the losses and gradients that a site wrote, shape (n,) and (n, elements).

    They stay in the file, which must not be removed before they are used.
    """
    found = np.memmap(folder / f"{site}", np.float32, mode="r").reshape(-1, 1 + elements)
    return found[:, 0], found[:, 1:]


class Watched:
    """See :class:`anabranch.train.work.ServableWork`; appends each step's results to a file.

    Args:
        work: makes the steps.
        path: of the file; None: no file.
    """

    def __init__(self, work: ServableWork, path: Path | None) -> None:
        self._work = work
        self._path = path
        self.buffer, self.model, self.make_rule = work.buffer, work.model, work.make_rule
        self.apply, self.evaluate = work.apply, work.evaluate
        self.state_dict, self.load_state_dict = work.state_dict, work.load_state_dict

    def local_step(self, samples: int) -> float | None:
        """See :class:`anabranch.train.work.Work`."""
        loss = self._work.local_step(samples)
        if self._path is not None:
            with self._path.open("ab") as file:
                np.float32(loss).tofile(file)
                self.buffer.tofile(file)
        return loss
