"""Output formats: one file each, which registers itself."""
