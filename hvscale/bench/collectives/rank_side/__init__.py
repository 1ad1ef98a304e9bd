"""The part of a benchmark that runs inside every rank. Never imports the controller."""
