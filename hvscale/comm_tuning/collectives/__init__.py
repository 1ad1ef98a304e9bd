"""Measures collectives, decides which algorithm is fastest where, and writes decision tables."""
