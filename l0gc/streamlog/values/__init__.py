"""Typed columns of values: which schemas there are, what fits, how values become columns, and rows values."""
