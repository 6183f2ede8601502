"""Accelerators: peak rates and memory, from a catalogue, a user file or a measurement."""

from servefit.hardware.accelerator import UNKNOWN, Hardware
from servefit.hardware.catalogue import catalogue, get_hardware
from servefit.hardware.files import hardware_from_options, load_hardware_file

__all__ = [
    "UNKNOWN",
    "Hardware",
    "catalogue",
    "get_hardware",
    "hardware_from_options",
    "load_hardware_file",
]
