"""Measures what communication costs by itself: collectives on any back end, in the columns that people know."""
