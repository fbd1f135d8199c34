"""The simulated world: virtual time, links as flows, modelled computing."""
