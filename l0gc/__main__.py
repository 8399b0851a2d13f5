"""Run the command `l0gc` as `python -m l0gc`."""

from l0gc.cli.entry import main

main()
