"""Supervises a running job: its processes, output, signals and time limits."""
