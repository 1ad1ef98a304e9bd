"""Knobs: settings with one meaning that each library spells in its own way.

Each library is one file of `libraries/`.
"""
