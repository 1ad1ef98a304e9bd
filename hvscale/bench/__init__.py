"""Measurement studies: raw communication, applications, and one place for ranks against another."""
