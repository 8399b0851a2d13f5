"""The command line: one module for each command; what it prints is apart from what it does."""
