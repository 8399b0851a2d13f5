"""Write the table of docs/metrics.md again from l0gc/cli/metrics.py: `.venv/bin/python docs/metrics.py`."""

from __future__ import annotations

import re
from pathlib import Path

from l0gc.cli.metrics import MEASURED, METRICS, OBSERVING

PAGE = Path(__file__).parent / "metrics.md"
ROWS = re.compile(r"(?<=\| metric \| type \| steps \| meaning \|\n\| --- \| --- \| --- \| --- \|\n)(?:\|.*\n)+")


def page(text: str) -> str:
    """Return the page with the metrics that there are."""
    several = {MEASURED: "all", OBSERVING: "all but upload"}
    steps = (several.get(m.steps, ", ".join(m.steps)) for m in METRICS)
    rows = "".join(f"| `{m.name}` | {m.kind} | {step} | {m.help} |\n" for m, step in zip(METRICS, steps, strict=True))
    return ROWS.sub(lambda _: rows, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
