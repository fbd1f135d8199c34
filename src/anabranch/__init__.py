"""Train one PyTorch model across sites joined by slow, uneven, changing networks.

Importing this package reads no file, no command line and no environment.
"""

__version__ = "0.1.0"
