"""Compute M, the highest epoch that no partition needs any more, and publish it in one place."""
