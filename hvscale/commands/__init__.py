"""Groups of sub-commands that cli.py registers: they parse and print, and decide nothing."""
