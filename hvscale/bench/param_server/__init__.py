"""Parameters from a server to its workers and gradients back, and the all-reduce that replaces
both: by every library, in every placement.
"""
