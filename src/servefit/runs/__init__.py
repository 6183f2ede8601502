"""The table of runs: schema, reading and writing, consistency checks, row selection."""
