"""The progress bar, tables, figures and page of a tuning study of collectives."""
