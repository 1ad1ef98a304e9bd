"""Settings for a number of ranks that nobody has: searched in the model, proven by replay."""
