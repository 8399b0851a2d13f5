"""l0gc: epoch-based garbage collection for level-zero (L0) objects in object storage.

The library's entry point is `l0gc.open`. The library is imported on first use, so that `import l0gc` and `l0gc --help`
stay fast.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing `typing` takes a third of this package's import time

if TYPE_CHECKING:
    from l0gc import errors as errors
    from l0gc.api import Cluster as Cluster
    from l0gc.api import Record as Record
    from l0gc.api import open as open
else:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "errors":
            return importlib.import_module("l0gc.errors")
        if name in {"Cluster", "Record", "open"}:
            return getattr(importlib.import_module("l0gc.api"), name)
        raise AttributeError(f"module 'l0gc' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), "Cluster", "Record", "errors", "open"})
