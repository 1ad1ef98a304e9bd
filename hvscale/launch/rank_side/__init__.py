"""Code that runs inside a rank or on its node, started with the standard library alone. Imports
nothing of the controller.
"""
