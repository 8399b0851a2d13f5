"""Tables: a topic's L1 objects, not copied, as an Iceberg table that every engine reads."""
