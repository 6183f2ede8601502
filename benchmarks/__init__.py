"""Measurements of servefit itself: speed and accuracy."""
