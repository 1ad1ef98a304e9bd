"""The part of a benchmark that runs inside each rank. It never imports the controller."""
