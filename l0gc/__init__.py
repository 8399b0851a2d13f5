"""l0gc: epoch-based garbage collection for level-zero (L0) objects in object storage."""

__version__ = "0.1.0"
