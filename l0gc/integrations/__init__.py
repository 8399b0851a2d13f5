"""What other systems see of l0gc: `format("l0gc")` in Spark, topics as Iceberg tables, a bridge from Kafka."""
