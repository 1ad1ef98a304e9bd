"""Starts N ranks of any command and ends them, knowing only arguments and environment variables.

`controller.launch` starts a job. This package imports nothing, so that code inside a rank can look
up a flavour without loading the controller.
"""
