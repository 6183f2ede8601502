"""The accuracy of the laws on published measurements: ``python -m benchmarks.accuracy``."""
