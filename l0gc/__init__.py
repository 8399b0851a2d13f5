"""l0gc: epoch-based garbage collection for level-zero (L0) objects in object storage."""

import logging

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who uses the library says where its log goes
