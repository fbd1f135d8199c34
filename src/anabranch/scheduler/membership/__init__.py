"""Membership: each site's life, as one table."""
