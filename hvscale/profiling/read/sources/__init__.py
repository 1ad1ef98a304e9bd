"""One file for each kind of profile, which registers itself with events.SOURCES."""
