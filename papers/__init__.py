"""The papers' tables and figures, made again: one short script for each."""

from anabranch._typed_toml import listed, nearest
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial, WorkerOutcome, seconds
from papers._record import NotRecorded, Record
from papers._result import Result, Row, comparison, page, write_result
from papers.haaf import fig08 as haaf_fig08
from papers.haaf import fig09 as haaf_fig09
from papers.haaf import fig10 as haaf_fig10
from papers.haaf import fig11 as haaf_fig11
from papers.haaf import fig12 as haaf_fig12
from papers.haaf import fig13 as haaf_fig13
from papers.haaf import fig14 as haaf_fig14
from papers.haaf import fig15 as haaf_fig15
from papers.haaf import trees as haaf_trees
from papers.intermittent import adaptive
from papers.intermittent import future as intermittent_future
from papers.intermittent import tables as intermittent_tables
from papers.map import network as map_network
from papers.netstorm import (
    fig01,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18,
    fig19,
    fig20,
    tables,
    training,
)
from papers.r2sp import edges as r2sp_edges
from papers.r2sp import fig01 as r2sp_fig01
from papers.r2sp import fig02 as r2sp_fig02
from papers.r2sp import fig04 as r2sp_fig04
from papers.r2sp import fig05 as r2sp_fig05
from papers.r2sp import fig08 as r2sp_fig08
from papers.r2sp import fig08c as r2sp_fig08c
from papers.r2sp import fig10 as r2sp_fig10
from papers.r2sp import fig11 as r2sp_fig11
from papers.r2sp import fig12 as r2sp_fig12
from papers.r2sp import fig13 as r2sp_fig13
from papers.r2sp import fig14 as r2sp_fig14
from papers.r2sp import fig15 as r2sp_fig15
from papers.r2sp import fig16 as r2sp_fig16
from papers.r2sp import full_steps as r2sp_full_steps
from papers.r2sp import robust as r2sp_robust
from papers.r2sp import table1 as r2sp_table1
from papers.r2sp import table2 as r2sp_table2
from papers.r2sp import table3 as r2sp_table3
from papers.r2sp import table4 as r2sp_table4
from papers.r2sp import theorem1 as r2sp_theorem1

_NETSTORM = (fig01, fig13, fig14, fig15, fig16, fig17, fig18, fig19, fig20, tables, training)
_R2SP = (
    r2sp_table1,
    r2sp_table2,
    r2sp_fig01,
    r2sp_fig02,
    r2sp_fig04,
    r2sp_fig05,
    r2sp_fig08,
    r2sp_fig10,
    r2sp_table3,
    r2sp_fig11,
    r2sp_fig12,
    r2sp_fig13,
    r2sp_full_steps,
    r2sp_theorem1,
    r2sp_robust,
)

_HAAF = (
    haaf_fig08,
    haaf_fig11,
    haaf_fig12,
    haaf_fig13,
    haaf_fig14,
    haaf_fig15,
    haaf_trees,
)

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        *(figure.EXPERIMENT for figure in (*_NETSTORM, *_R2SP, *_HAAF)),
        *r2sp_table4.EXPERIMENTS,
        *r2sp_edges.EXPERIMENTS,
        *r2sp_fig08c.EXPERIMENTS,
        *r2sp_fig14.EXPERIMENTS,
        *r2sp_fig15.EXPERIMENTS,
        *r2sp_fig16.EXPERIMENTS,
        *haaf_fig09.EXPERIMENTS,
        *haaf_fig10.EXPERIMENTS,
        *map_network.EXPERIMENTS,
        *intermittent_tables.EXPERIMENTS,
        *intermittent_future.EXPERIMENTS,
        adaptive.EXPERIMENT,
    )
}
"""Every experiment, by name."""

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Lab",
    "NotRecorded",
    "Outcome",
    "Record",
    "Result",
    "Row",
    "Trial",
    "WorkerOutcome",
    "comparison",
    "find",
    "page",
    "seconds",
    "write_result",
]


def find(name: str) -> list[Experiment]:
    """Return the experiment of this name or, if it names a paper, all experiments of that paper.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    papers = dict.fromkeys(each.partition("/")[0] for each in EXPERIMENTS)
    found = [
        each for each in EXPERIMENTS.values() if name in (each.name, each.name.partition("/")[0])
    ]
    if not found:
        near = nearest(name, [*papers, *EXPERIMENTS]) or f"there are {listed(EXPERIMENTS)}"
        raise ValueError(f"no experiment {name!r}; {near}")
    return found
