"""A world of its own: virtual time, links as flows, modelled computing."""
