"""What a test on a real bucket leaves when it fails: the bucket as it is, and its commands with what they printed.

`tests/conftest.py` keeps it for every test that has a `store`, in a folder that pytest names below the failure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from l0gc.errors import ObjectNotFoundError
from l0gc.storage.objectstore import ObjectStore

ARTIFACTS: Final = Path(__file__).parents[2] / "artifacts"
_MOST_BYTES: Final = 256 << 20
"""So much of a bucket is copied, the logs first: the listing names all of it."""
_LOGS: Final = "l0gc/"


class Command:
    """A command that a test has run or started. `ended` is what it returned, printed or raised, once it has ended."""

    def __init__(self, args: tuple[str, ...], process: subprocess.Popen[bytes] | None = None) -> None:
        self.args = args
        self.started_s = time.time()
        self.process = process
        self.ended: Any = None

    def outcome(self) -> dict[str, Any]:
        """How it ended; of a process with the output that the test has not read."""
        known: dict[str, Any] = {"args": self.args, "started": self.started_s, "ended": self.ended}
        if self.process is not None:
            known["exit_code"] = code = self.process.poll()
            pipes = {"stdout": self.process.stdout, "stderr": self.process.stderr}
            for name, pipe in pipes.items():
                if code is not None and pipe is not None and not pipe.closed:
                    os.set_blocking(pipe.fileno(), False)  # a child of the process may still hold the other end
                    known[name] = pipe.read()
        return known


commands: Final[list[Command]] = []
"""Those of the test that runs, in the order in which they began."""


def keep(store: ObjectStore, test: str, failure: str, root: Path = ARTIFACTS) -> Path:
    """Copy the bucket of `test`, which failed with `failure`, into a new folder below `root`."""
    folder = root / "evidence" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', test)[-120:]}-{time.time_ns()}"
    folder.mkdir(parents=True)
    (folder / "failure.txt").write_text(failure)
    with (folder / "commands.ndjson").open("w") as lines:
        for command in commands:
            lines.write(json.dumps(command.outcome(), default=_plain) + "\n")
    pages = list(store.scan(""))
    rows = [row for page in pages for row in zip(page.keys, page.sizes, page.modified_ms, strict=True)]
    (folder / "listing.tsv").write_text("".join(f"{key}\t{size}\t{modified}\n" for key, size, modified in rows))
    left = _MOST_BYTES
    for key, size, _ in sorted(rows, key=lambda row: not row[0].startswith(_LOGS)):
        left -= size
        if left >= 0:
            _copy(store, key, folder / "bucket" / key.strip("/"))
    return folder


def _copy(store: ObjectStore, key: str, path: Path) -> None:
    try:
        body = store.get(key).body
    except ObjectNotFoundError:  # something still deletes
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


def _plain(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
