"""Delete what M allows: find it without reading the whole bucket, delete it in batches, and keep a record."""
