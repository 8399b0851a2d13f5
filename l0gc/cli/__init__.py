"""The command line: one module for each command, with printing separate from the work."""
