"""Run a scenario as processes: the scheduler's, each site's, and the launcher that starts them."""
