"""Finds, decodes, caches and samples training images. Nothing here imports torch."""
