"""Docker: its daemon, the image that ranks run in, and the folders that a container sees."""
