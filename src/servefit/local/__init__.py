"""A real inference engine on this machine's CPU: build a small model, measure it, learn from it."""
