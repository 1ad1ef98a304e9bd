"""Measurement studies: collectives by themselves, applications, and one place for ranks against another."""
