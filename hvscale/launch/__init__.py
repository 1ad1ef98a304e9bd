"""Starts N ranks of any command and ends them: plain arguments and environment variables, no
knowledge of what they do.

`controller.launch` starts a job. Nothing is imported here: code that runs inside a rank may look up
a flavour without loading the controller.
"""
