"""The programs of the check's ranks. They never import the controller."""
