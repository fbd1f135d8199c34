"""A WAN on one machine: network namespaces whose links the kernel holds to an overlay."""

from anabranch.emulate._emulation import Emulation, check_emulable, emulated
from anabranch.emulate._layout import EmulationError

__all__ = ["Emulation", "EmulationError", "check_emulable", "emulated"]
