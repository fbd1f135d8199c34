"""The network as data: sites, directed links (rate, latency, loss), traces of change, files."""

from anabranch.overlay._built_in import BUILT_IN, aws_8, internet2_9
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
]
