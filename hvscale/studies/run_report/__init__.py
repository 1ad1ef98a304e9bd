"""The tables, figures and page of recorded runs."""
