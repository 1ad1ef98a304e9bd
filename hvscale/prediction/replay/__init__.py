"""Replay: each rank repeats what a recorded job sends, with real Horovod and no computation."""
