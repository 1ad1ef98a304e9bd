"""Docker: its daemon, the image that ranks run in, and what of this machine a container sees."""
