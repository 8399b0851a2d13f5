"""Connect l0gc to other systems: `format("l0gc")` in Spark, topics as Iceberg tables, a bridge from Kafka."""
