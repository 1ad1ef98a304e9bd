"""Training that continues when ranks join or leave."""
