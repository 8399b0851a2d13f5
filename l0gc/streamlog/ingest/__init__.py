"""Take records in: lines to partitions, partitions to extents, extents to L0 objects, L0 objects to placeholders."""
