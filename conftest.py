"""Modules for optional packages have no doctests to look for where these are not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("flwr") else ["src/anabranch/flower/_strategies.py"]
