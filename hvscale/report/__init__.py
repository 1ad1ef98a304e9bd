"""Tables, figures and HTML pages in one house style. Imports only core."""
