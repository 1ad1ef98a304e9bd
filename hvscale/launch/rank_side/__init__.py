"""Code that runs inside a rank or on its node, with the standard library only.

It imports nothing of the controller.
"""
