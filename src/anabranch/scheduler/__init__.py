"""The control plane of a run: its members, the calls that they make, and the plans of these."""
