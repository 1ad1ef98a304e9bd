"""The nodes that a job runs on, and the programs that make and connect them."""
