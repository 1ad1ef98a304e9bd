"""Recorders inside a rank's Python. Standard library only: it may not have hvscale."""
