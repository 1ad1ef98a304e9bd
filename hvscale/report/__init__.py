"""What people look at: tables, figures and HTML pages in one house style. Imports only core."""
