"""Profiling a live server over HTTP: few points, short, right."""
