"""Knobs: settings with one meaning that each library spells its own way.

Each library is one file of `libraries/`.
"""
