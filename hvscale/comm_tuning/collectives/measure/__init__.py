"""`hvscale tune-collectives`: measures the algorithms of collectives, and decides."""
