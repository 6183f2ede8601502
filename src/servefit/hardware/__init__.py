"""Accelerators: peak rates and memory, from a catalogue, a user file or a measurement."""

from servefit.hardware.accelerator import UNKNOWN, Hardware

__all__ = ["UNKNOWN", "Hardware"]
