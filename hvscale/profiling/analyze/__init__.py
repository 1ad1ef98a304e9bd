"""Turns events into tables: breakdown by message size, waiting, exposed communication, buffer reuse
and Horovod's phases.
"""
