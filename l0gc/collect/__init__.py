"""Delete the objects that M allows: find them without reading the whole bucket, delete them in batches, and keep a
record.
"""
