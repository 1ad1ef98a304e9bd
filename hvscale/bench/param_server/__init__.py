"""Benchmark of a parameter server, which sends parameters and gathers gradients, against
all-reduce.
"""
