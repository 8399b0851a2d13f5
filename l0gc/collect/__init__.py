"""Deleting what M allows: find it without reading the whole bucket, delete it in batches, keep a record."""
