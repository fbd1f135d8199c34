"""Models that are averaged over bad networks: how often."""
