"""The Spark jobs. What they decide is decided in `watermark/`, `reconcile/` and `sweep/`; here it is spread out."""
