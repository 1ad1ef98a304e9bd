"""The loggers: each is one file that registers itself."""
