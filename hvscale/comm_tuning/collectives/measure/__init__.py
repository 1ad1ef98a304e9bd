"""Measures the algorithms of collectives, on the controller and in the ranks."""
