"""Fill in templates: their names and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from statistics import median

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from anabranch.log import units
from anabranch.log.summary import RunSummary
from anabranch_lab.reports import (
    _awareness,
    _awareness_figure,
    _pace_figures,
    _plan_figure,
    _run_figures,
    _twin_figures,
    tables,
)
from anabranch_lab.reports._twin import AGREEMENT
from anabranch_lab.reports.runs import Run


def render(template: str, values: Mapping[str, object]) -> str:
    """Return a page; text in it is escaped, and figures are plotly's own HTML."""
    numbers = count()

    def draw(figure: go.Figure) -> Markup:
        """Return a figure as a fragment that loads nothing; plotly itself escapes for scripts."""
        fragment = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{next(numbers)}",
            config={"responsive": True, "displaylogo": False},
        )
        return Markup(fragment)

    environment = Environment(
        loader=PackageLoader("anabranch_lab.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for quantity in (
        units.seconds,
        units.rate,
        units.size,
        units.percent,
        units.times,
        units.ratio,
        units.buffers,
        units.count,
    ):
        environment.filters[quantity.__name__] = quantity
    environment.filters["median"] = lambda numbers: median(numbers)
    environment.globals.update(
        draw=draw,
        by_name=_by_name,
        tables=tables,
        awareness=_awareness,
        plan_figure=_plan_figure,
        run_figures=_run_figures,
        pace_figures=_pace_figures,
        twin_figures=_twin_figures,
        awareness_figure=_awareness_figure,
        AGREEMENT=AGREEMENT,
    )
    library = Markup(get_plotlyjs())
    return environment.get_template(template).render(library=library, **values)


def _by_name(runs: Iterable[Run]) -> dict[str, RunSummary]:
    return {run.name: run.summary for run in runs}
