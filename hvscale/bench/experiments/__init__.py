"""A published study made again from one file: what it measures, by the engines of the other commands, and what it says, tested."""
