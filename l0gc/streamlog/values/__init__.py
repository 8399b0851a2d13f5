"""Typed columns of values: the schemas, what fits them, and how values become columns, and rows become values."""
