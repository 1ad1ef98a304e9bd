"""MPI libraries and their launchers: finding them, their abilities, and the programs
built on them.
"""
