"""Ingest records: from lines to partitions, extents, L0 objects and placeholders."""
