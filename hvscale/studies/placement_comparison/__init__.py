"""Placements compared: the overhead of each over the first, and the messages that it goes into."""
