"""Repeats a published study from one TOML file: makes its measurements with the other bench
commands and tests its claims.
"""
