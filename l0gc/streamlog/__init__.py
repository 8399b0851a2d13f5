"""The stream log that l0gc collects for: controller, journals, ingest, level one and the reader."""
