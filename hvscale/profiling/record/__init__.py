"""Starts the recorders: hvprof, Horovod's timeline and the NCCL plug-in."""
