"""Does what has no command: `cores.py fill TOPIC FILE` lifts a file's lines in several rounds, and `cores.py read_arrow
TOPIC` reads them in Arrow batches. The environment names the cluster.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import l0gc

ROUNDS: Final = 4
"""How many L1 objects each partition gets, for a merge to join."""


def main(job: str, topic: str, file: str = "") -> dict[str, Any]:
    """Fill the topic or read it, and return the number of records."""
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        if job == "read_arrow":
            return {"records": sum(batch.num_rows for batch in cluster.read_arrow(topic))}
        values, records = Path(file).read_bytes().splitlines(), 0
        for number in range(ROUNDS):
            cluster.upload(topic, values[number::ROUNDS], key_field="user")
            records += cluster.reconcile().records
        return {"records": records}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
