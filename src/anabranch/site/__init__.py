"""A site's data plane: chunks, lanes, aggregate-and-forward, relays; and its side of a run."""
