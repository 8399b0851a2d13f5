"""Connect l0gc to other systems: `format("l0gc")` in Spark, topics as Iceberg tables, and a bridge from Kafka."""
