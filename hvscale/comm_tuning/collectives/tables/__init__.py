"""The decision table, and the files for each library that it is written to."""
