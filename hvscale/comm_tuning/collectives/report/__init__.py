"""What people see of a study of collectives: tables, figures, the HTML page and progress."""
