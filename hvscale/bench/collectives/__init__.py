"""Benchmarks of single collectives over message sizes."""
