"""Present a topic's L1 objects, without copying them, as an Iceberg table that every engine can read."""
