"""What a sample of a running job looks like, in the terminal and on a local page."""
