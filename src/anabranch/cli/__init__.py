"""The command line. Each command reads its input, calls the rooms that do the work, and prints."""

# In the order in which the commands are listed.
from anabranch.cli import _runs  # isort: skip  # noqa: F401
from anabranch.cli import _plans  # isort: skip  # noqa: F401
from anabranch.cli import _reproduce  # isort: skip  # noqa: F401
from anabranch.cli import _results  # isort: skip  # noqa: F401
from anabranch.cli import _scheduler  # isort: skip  # noqa: F401
from anabranch.cli import _processes  # isort: skip  # noqa: F401
from anabranch.cli import _status  # isort: skip  # noqa: F401
from anabranch.cli import _certs  # isort: skip  # noqa: F401
from anabranch.cli import _explore  # isort: skip  # noqa: F401
from anabranch.cli._app import app, main

__all__ = ["app", "main"]
