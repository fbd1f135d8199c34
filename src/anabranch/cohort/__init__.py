"""Pure: many registered clients, few of which compute at a time; draws, and times away.

A worker plays a client for one update. So a run has a connection for each worker, and any number of
clients. Each client has its own samples and its own speed, and comes and goes.
"""

from anabranch.cohort._clients import Away, Clients
from anabranch.cohort._registry import Registry

__all__ = ["Away", "Clients", "Registry"]
