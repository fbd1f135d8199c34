"""The control plane: who takes part, and under which plan each round runs."""
