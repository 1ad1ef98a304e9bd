"""MPI libraries and their launchers: where they are, what they can do, and how programs are bound
to them.
"""
