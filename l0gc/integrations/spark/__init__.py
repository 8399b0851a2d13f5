"""Provide `format("l0gc")`: topics as a source and a sink of Spark, batch and streaming, by its Python data source API."""
