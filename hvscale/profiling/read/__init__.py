"""Reads the profiles of a run into events."""
