"""Comparisons of one command under several launch options: named settings, or placements."""
