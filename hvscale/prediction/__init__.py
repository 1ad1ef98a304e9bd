"""Replays a job's communication without its computation, and predicts how far the job scales."""
