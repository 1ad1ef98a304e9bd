"""The tables, progress bar, figures and page of a tuning study of collectives."""
