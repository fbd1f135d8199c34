"""The network as data: sites, directed links (rate, latency, loss), traces of change, files."""

from anabranch.overlay._model import Link, Overlay, OverlayError, Site, Trace

__all__ = ["Link", "Overlay", "OverlayError", "Site", "Trace"]
