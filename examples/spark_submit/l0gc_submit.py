"""The program that spark-submit runs: `spark-submit [its options] l0gc_submit.py COMMAND [l0gc's options]`."""

from l0gc.cli.main import main

if __name__ == "__main__":
    main()
