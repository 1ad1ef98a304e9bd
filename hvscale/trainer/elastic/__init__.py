"""Elastic jobs, in which hosts come and go."""
