"""The commands of sites and schedulers. Each reads its input, calls other packages, and prints."""

# In the order in which the commands are listed.
from anabranch.cli import _scheduler  # isort: skip  # noqa: F401
from anabranch.cli import _status  # isort: skip  # noqa: F401
from anabranch.cli import _certs  # isort: skip  # noqa: F401
from anabranch.cli.commands import app, main

__all__ = ["app", "main"]
