"""Pure: many registered clients, few of which compute at a time: which are drawn, which are away.

A worker stands for a client for one update. So a run has as many connections as workers, and any
number of clients. Each client has its own samples and its own speed, comes and goes.
"""

from anabranch.cohort._clients import Away, Clients
from anabranch.cohort._registry import Registry

__all__ = ["Away", "Clients", "Registry"]
