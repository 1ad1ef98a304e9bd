"""Repeats a published study from a TOML file: makes its measurements and tests its claims."""
