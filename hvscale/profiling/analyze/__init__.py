"""Turns events into tables: the breakdown by message size, waiting, exposed communication, buffer
reuse and Horovod's phases.
"""
