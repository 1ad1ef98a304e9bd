"""The commands, one file each, loaded when the command is called. Each file has an `app`."""
