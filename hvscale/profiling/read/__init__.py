"""Reads what the recorders wrote, whatever state the files are in, as events."""
