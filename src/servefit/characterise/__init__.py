"""Where time, bandwidth and compute go: by formula, from profilers, and the two held together."""
