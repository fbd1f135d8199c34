"""Who takes part: each site's life, by one table."""
