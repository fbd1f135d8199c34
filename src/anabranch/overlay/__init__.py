"""The network as data: sites, directed links (rate, latency, loss), traces of change, files."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from anabranch._lazy import lazy as _lazy

if _TYPE_CHECKING:
    from anabranch.overlay._built_in import BUILT_IN, aws_8, internet2_9, skyplane_10
    from anabranch.overlay._generate import random_complete, random_geographic, random_sparse
    from anabranch.overlay._graph_files import read_graph
    from anabranch.overlay._latency import Latency
    from anabranch.overlay._load import load
    from anabranch.overlay._model import (
        Basis,
        GraphLacks,
        Link,
        Overlay,
        OverlayError,
        Site,
        Trace,
        is_doubtful_latency,
    )
    from anabranch.overlay._rates import UniformRates, redraw
    from anabranch.overlay._tables import read_table
    from anabranch.overlay._toml import dumps, loads
else:
    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "_built_in": ["BUILT_IN", "aws_8", "internet2_9", "skyplane_10"],
            "_generate": ["random_complete", "random_geographic", "random_sparse"],
            "_graph_files": ["read_graph"],
            "_latency": ["Latency"],
            "_load": ["load"],
            "_model": [
                "Basis",
                "GraphLacks",
                "Link",
                "Overlay",
                "OverlayError",
                "Site",
                "Trace",
                "is_doubtful_latency",
            ],
            "_rates": ["UniformRates", "redraw"],
            "_tables": ["read_table"],
            "_toml": ["dumps", "loads"],
        },
    )

__all__ = [
    "BUILT_IN",
    "Basis",
    "GraphLacks",
    "Latency",
    "Link",
    "Overlay",
    "OverlayError",
    "Site",
    "Trace",
    "UniformRates",
    "aws_8",
    "dumps",
    "internet2_9",
    "is_doubtful_latency",
    "load",
    "loads",
    "random_complete",
    "random_geographic",
    "random_sparse",
    "read_graph",
    "read_table",
    "redraw",
    "skyplane_10",
]
