"""Repeated, interleaved, resumable measurements of any command."""
