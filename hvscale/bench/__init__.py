"""Benchmarks: collectives, a parameter server, MPI applications, and whole published studies."""
