"""Finds and removes what a killed run left on the machine."""
