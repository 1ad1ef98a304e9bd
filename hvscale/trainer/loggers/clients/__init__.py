"""The loggers. Each file registers one."""
