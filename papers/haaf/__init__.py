"""HAAF (Deng et al., 2025): a forest of aggregation trees, and its rivals."""
