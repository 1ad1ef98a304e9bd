"""Writes checkpoints and resumes from them."""
