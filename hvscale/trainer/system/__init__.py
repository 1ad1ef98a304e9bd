"""Precision, cores and memory, gradient exchange as bf16, batch normalisation, the watchdog."""
