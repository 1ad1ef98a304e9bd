"""The files that a decision table becomes: one format each, which registers itself."""
