"""Communication tuning: the knobs of every library, and what a job is given of them."""
