"""The profile sources: each file reads one kind of profile and registers itself."""
