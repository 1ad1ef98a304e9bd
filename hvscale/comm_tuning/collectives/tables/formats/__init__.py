"""One file per library: the formats of a decision table that the library reads."""
