"""Throughput, speed-up and scaling efficiency of one command on several numbers of ranks."""
