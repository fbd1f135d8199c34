"""Pure: many registered clients, of whom few take part at a time: who is drawn, who is away.

A worker that is let go on stands for a client for one update. So a run has as many connections as
workers, and any number of clients: each has its own samples and its own speed, comes and goes.
"""

from anabranch.cohort._clients import Away, Clients
from anabranch.cohort._registry import Registry

__all__ = ["Away", "Clients", "Registry"]
