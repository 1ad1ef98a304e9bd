"""The commands, each in the file of its name with an `app`, and what they share: they parse and print, and decide nothing."""
