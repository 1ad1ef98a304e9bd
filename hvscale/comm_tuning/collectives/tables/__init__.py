"""The decision table, and its form in each library's own format."""
