"""The lab's commands, added to those of anabranch."""

# In the order in which the commands are listed.
from anabranch_lab.cli import runs  # isort: skip  # noqa: F401
from anabranch_lab.cli import _plans  # isort: skip  # noqa: F401
from anabranch_lab.cli import _results  # isort: skip  # noqa: F401
from anabranch_lab.cli import _processes  # isort: skip  # noqa: F401
from anabranch_lab.cli import _explore  # isort: skip  # noqa: F401
from anabranch.cli import app

__all__ = ["app"]
