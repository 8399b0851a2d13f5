"""`python -m l0gc` is the command `l0gc`."""

from l0gc.cli.entry import main

main()
