"""A WAN on one machine: network namespaces whose links the kernel holds to an overlay."""

from anabranch_lab.emulate._emulation import Emulation, check_emulable, emulated
from anabranch_lab.emulate._layout import Direction, EmulationError, most_strands

__all__ = ["Direction", "Emulation", "EmulationError", "check_emulable", "emulated", "most_strands"]
