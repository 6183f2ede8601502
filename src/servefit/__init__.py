"""Measure a few points of an LLM server, fit a small physical model, and know the rest."""

__version__ = "0.1.0"
