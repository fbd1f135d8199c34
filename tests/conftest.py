"""Where temporary files go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# Simulated runs write many small logs, and SQLite waits for the disk as each is made and closed.
_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 2 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
