"""Which scheme wins where: the papers' schemes and ours, on real networks and uneven fleets."""
