"""The commands that are captured, in an order in which each has something to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from l0gc.cli.main import effects, load

DATA: Final = 'python -c "for n in range(3000): print(\'{\\"user\\":\\"u%d\\",\\"n\\":%d}\' % (n % 40, n))"'
"""Prints records to upload."""
CATALOG: Final = "TYPE=sql URI=sqlite:///lake.db WAREHOUSE=${L0GC_URL%/*}/lake"
"""The configuration of a catalog for tables, in PyIceberg's variables."""


@dataclass(frozen=True, slots=True)
class Scene:
    """`silent` ones are typed and not kept: they make what the next one shows."""

    command: str
    silent: bool = False


SCENES: Final = [
    Scene("l0gc --version"),
    Scene("l0gc help sweep"),
    Scene("l0gc server --help"),
    Scene("l0gc doctor"),
    Scene("l0gc status"),
    Scene("l0gc init --create-bucket --shards 8"),
    Scene("l0gc doctor"),
    Scene("l0gc topic create events --partitions 4"),
    Scene("l0gc topic create orders --partitions 2 --journals 2"),
    Scene("l0gc topic alter events --retention 7d"),
    Scene("l0gc topic list"),
    Scene("l0gc topic describe events"),
    Scene(f"{DATA} > events.ndjson", silent=True),
    Scene("l0gc upload events events.ndjson --key-field user --producer nightly"),
    Scene("l0gc upload events events.ndjson --key-field user --producer nightly"),
    Scene("printf 'n,m\\n1,2\\n' > table.csv", silent=True),
    Scene("l0gc upload events table.csv"),
    Scene("l0gc upload evnts events.ndjson"),
    Scene("l0gc topic infer events"),
    Scene("l0gc producer list"),
    Scene("l0gc producer describe nightly"),
    Scene("l0gc epoch show"),
    Scene("l0gc epoch advance"),
    Scene("l0gc status"),
    Scene("l0gc reconcile"),
    Scene("l0gc housekeep --barrier"),
    Scene("l0gc compute-watermark"),
    Scene("l0gc status"),
    Scene("l0gc sweep --dry-run"),
    Scene("l0gc pause --why 'checking the dry run first' --by ann"),
    Scene("l0gc sweep"),
    Scene("l0gc status"),
    Scene("l0gc resume"),
    Scene("l0gc sweep"),
    Scene(
        'RUN=$(l0gc runs list --json | python -c \'import json,sys; print(json.load(sys.stdin)["runs"][-1]["run_id"])\')',
        True,
    ),
    Scene("l0gc runs list"),
    Scene("l0gc runs show $RUN"),
    Scene(
        'KEY=$(l0gc runs show $RUN --json | python -c \'import json,sys; print(json.load(sys.stdin)["sample"][0]["key"])\')',
        True,
    ),
    Scene("l0gc runs find $KEY"),
    Scene("l0gc undelete --run $RUN"),
    Scene("l0gc explain level_zero/data/000/000000000000000002/3f0c8f9e-0000-4000-8000-000000000000"),
    Scene("l0gc read events --partition 0 | head -n 2"),
    Scene("l0gc read events -o events.out"),
    Scene("cmp <(sort events.ndjson) <(sort events.out) && echo the same records"),
    Scene("l0gc pin create backup --ttl 6h --why 'nightly backup'"),
    Scene("l0gc pin list"),
    Scene("l0gc pin delete backup"),
    Scene("l0gc log show | head -n 3"),
    Scene("l0gc log show --journal 0 | head -n 3"),
    Scene("l0gc explain --partition events/0"),
    Scene("l0gc merge --dry-run"),
    Scene(
        "for n in 1 2 3 4 5 6; do l0gc upload events events.ndjson; l0gc reconcile --engine local; done", silent=True
    ),
    Scene("l0gc merge --dry-run --fan-in 2"),
    Scene("l0gc merge --fan-in 2"),
    Scene("l0gc delete-records events --before-offset 10"),
    Scene("l0gc expire"),
    Scene("l0gc housekeep --barrier", silent=True),
    Scene("l0gc housekeep --barrier", silent=True),
    Scene("l0gc vacuum --dry-run"),
    Scene("l0gc vacuum --l1-grace 0s"),
    Scene("l0gc verify"),
    Scene(f"for part in {CATALOG}; do export PYICEBERG_CATALOG__LAKE__$part; done", silent=True),
    Scene("l0gc table create events --catalog lake"),
    Scene("l0gc table sync"),
    Scene("l0gc table list"),
    Scene("l0gc gc"),
    Scene("l0gc status"),
    Scene("l0gc report -o report.html"),
    Scene("l0gc table drop events"),
    Scene("l0gc topic delete orders --yes"),
    Scene("l0gc config show"),
    Scene("l0gc completion bash | head -n 3"),
    Scene("l0gc sweep --max-object 3"),
    Scene("l0gc status --url s3://no-such-bucket/here"),
]
BELOW_THE_LADDER: Final = [
    "l0gc init --create-bucket --shards 8",
    "l0gc topic create events --partitions 4",
    f"{DATA} > events.ndjson",
    "for n in 1 2 3 4 5 6; do l0gc upload events events.ndjson; done",
    "sleep 5",
]
"""What is typed before the session of docs/first-hour/is-it-safe.md begins."""
FORMS: Final = {"l0gc status": "status", "l0gc doctor": "doctor", "l0gc sweep --dry-run": "sweep-dry-run"}
"""Those that are also kept with colours, on a terminal that can do nothing, and in a pipe; the last time counts."""
LEFT_OUT: Final = {
    "demo": "runs the others, for two minutes",
    "give-up": "needs a lost object",
    "version": "prints what each release changes",
}
"""The commands that have no scene, and why."""


def examples() -> list[Scene]:
    """The commands that the scenes above do not have: the first example of the help of each."""
    played = [f"{' '.join(s.command.split()[1:3])} " for s in SCENES if s.command.startswith("l0gc ")]
    missing = [name for name in effects() if name not in LEFT_OUT and not any(p.startswith(f"{name} ") for p in played)]
    return [Scene(_example(name)) for name in missing]


def _example(name: str) -> str:
    group, _, leaf = name.partition(" ")
    command = load(group)
    text = (command.commands[leaf] if isinstance(command, click.Group) else command).help or ""
    return next(line.strip() for line in text.partition("Example:")[2].splitlines() if line.strip())
