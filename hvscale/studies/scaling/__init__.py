"""Scaling: the throughput of one command on different numbers of ranks, measured in turns, and what became of each rank's speed."""
