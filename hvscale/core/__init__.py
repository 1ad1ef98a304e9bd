"""What every room stands on. Imports no other room."""
