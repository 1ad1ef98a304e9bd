"""The files that a study writes: one format each, which registers itself."""
