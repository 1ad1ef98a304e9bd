"""Measurement studies: collectives by themselves, a parameter server, applications, and one place
for ranks against another.
"""
