"""Where temporary files go, and how long a drawn example may take: as long as it needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hypothesis import settings

# Simulated runs write many small logs, and SQLite waits for the disk as each is made and closed.
_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 2 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# How long an example takes depends on what the other worker does meanwhile.
settings.register_profile("anabranch", deadline=None)
settings.load_profile("anabranch")
