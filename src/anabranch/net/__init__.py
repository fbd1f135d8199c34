"""Moving bytes: typed messages, frames, the network port, TCP, and shaped links."""
