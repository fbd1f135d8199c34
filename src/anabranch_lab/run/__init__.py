"""A scenario becomes processes: the scheduler's, each site's, and the launcher of both."""
