"""Benchmarks of single collectives over a range of message sizes."""
