"""Write the flights that left New York City in 2013 as newline-delimited JSON, ready for `l0gc upload`.

This program decides only where the files go; `l0gc.embedded.sample` decides their contents, which are the same
everywhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from l0gc.embedded.sample import write_files
from l0gc.errors import L0gcError


def main(arguments: list[str] | None = None) -> int:
    """Write the files and name them on stdout, one a line."""
    parser = argparse.ArgumentParser(description="Write sample flights as newline-delimited JSON.")
    parser.add_argument("directory", type=Path, help="where the files go; made if need be")
    parser.add_argument("--files", type=int, default=8, help="how many files (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="only this many flights (default: all 336,776)")
    options = parser.parse_args(arguments)
    try:
        paths = write_files(options.directory, options.files, options.limit)
    except (L0gcError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, L0gcError) else 1
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
