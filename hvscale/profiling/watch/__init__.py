"""Samples a job that runs, from the files of its run folder, without touching the job.

Files are opened for reading and read with pread: no locks, no mapping.
"""
