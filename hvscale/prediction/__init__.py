"""Replays a job's communication without its computation."""
