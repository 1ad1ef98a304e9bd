"""Finds and removes what killed runs left on the machine."""
