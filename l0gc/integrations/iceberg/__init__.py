"""Tables: a topic's L1 objects, without a copy, as an Iceberg table that every engine can read."""
