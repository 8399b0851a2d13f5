"""The stream log whose garbage l0gc collects: controller, journals, ingest, level one and the reader."""
