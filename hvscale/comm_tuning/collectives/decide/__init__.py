"""Measurements of collectives, the cost model fitted to them, and the decision table."""
