"""No secret leaks: not to the screen, the bucket, a file, nor the command line of a process that l0gc starts.

Strictly, the access key id is not a secret; it is searched for as well, since logs do not need it.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import StoreError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.cli import Ended, l0gc_process
from tests.support.loopback import Serving

TOKEN = "FakeSessionToken0123456789abcdefghijklmnop"
PASSWORD = "hush-of-the-pushgateway"
WRONG = {"AWS_ACCESS_KEY_ID": "WRONGID0123456789", "AWS_SECRET_ACCESS_KEY": "wrong-secret-0123456789abcdefghij"}

IN_ONE = """
import sys
from l0gc.cli.main import cli
for command in sys.argv[1].splitlines():
    cli.main(command.split(), prog_name="l0gc", standalone_mode=False)
"""
"""A program that runs several commands in one process, so that Java and Python start once."""


class Seen:
    """All output, by the place where it appeared."""

    def __init__(self, folder: Path) -> None:
        self.found: dict[str, bytes] = {}
        self.home, self.temp = folder / "home", folder / "tmp"
        for place in (self.home, self.temp):
            place.mkdir()

    def run(self, *args: str, code: int, **environment: str) -> Ended:
        """Run a command, watch its files and command lines, and keep its output."""
        with self.watching():
            ended = l0gc_process(*args, environment=self.environment(environment))
        self.keep(" ".join(args), ended.stdout + ended.stderr.encode())
        assert ended.code == code, ended.stderr
        return ended

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return {"HOME": str(self.home), "TMPDIR": str(self.temp), **more}

    def keep(self, where: str, data: bytes) -> None:
        self.found[where] = self.found.get(where, b"") + data

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep also the files and the command lines that exist only briefly."""
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,))
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: threading.Event) -> None:
        files: dict[Path, int] = {}
        while not done.wait(0.2):
            for path in [*self.home.rglob("*"), *self.temp.rglob("*")]:
                with suppress(OSError):
                    if path.is_file() and files.get(path) != path.stat().st_size:
                        files[path] = path.stat().st_size
                        self.found[str(path)] = path.read_bytes()
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    if (path.parent / "environ").read_bytes().find(str(self.temp).encode()) >= 0:
                        self.found[str(path)] = path.read_bytes()

    def places_of(self, *secrets: str) -> list[str]:
        """Return the places at which one of these was found."""
        return [where for where, data in self.found.items() if any(s.encode() in data for s in secrets)]


LOOP = """
init --create-bucket --shards 4 -vv
topic create events --partitions 2 -vv
upload events {file} --producer nightly -vv
explain --epoch 1 -vv
gc --housekeep-barrier --log-format json --json --metrics-file {folder}/l0gc.prom -vv
compute-watermark -vv
verify --deep -vv
sweep --dry-run -vv
runs list -vv
report -o {folder}/report.html -vv
read events -vv
status -vv
status --json
doctor -vv
config show -vv
producer describe nightly -vv
"""


ON_SPARK = ("gc", "compute-watermark", "verify")


@pytest.mark.weed
@pytest.mark.parametrize(
    "spark", [False, pytest.param(True, marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.release])]
)
@pytest.mark.thorough
def test_a_whole_loop_gives_no_secret_away(weed: SeaweedFS, store: S3Store, tmp_path: Path, *, spark: bool) -> None:
    seen = Seen(tmp_path)
    (tmp_path / "records").write_bytes(b"one\ntwo\nthree\n")
    loop = LOOP.format(file=tmp_path / "records", folder=tmp_path).strip()
    for command in ON_SPARK:
        loop = loop.replace(f"\n{command} ", f"\n{command} --engine {'spark' if spark else 'local'} ")
    with seen.watching():
        ended = subprocess.run(
            [sys.executable, "-c", IN_ONE, loop],
            env={**os.environ, **seen.environment({"L0GC_PUSHGATEWAY": f"http://ann:{PASSWORD}@127.0.0.1:9"})},
            capture_output=True,
            check=False,
            timeout=600,
        )
    seen.keep("the loop", ended.stdout + ended.stderr)
    assert ended.returncode == 0, ended.stderr.decode()
    assert b'"deleted":1,' in ended.stdout
    assert b"the metrics were not sent to http" in ended.stderr
    for name in ("l0gc.prom", "report.html"):
        seen.keep(name, (tmp_path / name).read_bytes())

    seen.run("status", "-v", code=1, **WRONG)
    seen.run("sweep", "-v", code=1, **WRONG, AWS_SESSION_TOKEN=TOKEN)
    seen.run("topic", "list", "-v", code=1, AWS_ENDPOINT_URL_S3="http://127.0.0.1:9")
    refused = seen.run("topic", "create", "events", "--partitions", "3", "-v", code=2)
    assert "Traceback" in refused.stderr

    for page in store.scan(""):
        for name in page.keys:
            seen.keep(name, name.encode() + store.get(name).body)
    assert not any("level_zero" in where for where in seen.found)  # the sweep deleted it
    assert any("level_one" in where for where in seen.found)
    ran = [data for where, data in seen.found.items() if where.startswith("/proc")]
    assert any(b"SparkSubmit" in line for line in ran) == spark  # `doctor` always asks Java for its version
    assert seen.places_of(weed.secret_key, weed.access_key, TOKEN, PASSWORD, *WRONG.values()) == []


class _Echo(http.server.BaseHTTPRequestHandler):
    """Refuses signatures as AWS does: with the id, the token and everything that was signed in the body of its answer."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        canonical = "".join(f"{k.lower()}:{v}\n" for k, v in self.headers.items())
        body = (
            "<?xml version='1.0'?><Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>"
            f"<CanonicalRequest>{canonical}</CanonicalRequest></Error>"
        ).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    for name, value in {**WRONG, "AWS_SESSION_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, value)
    with Serving(server):
        yield S3Store(StoreConfig("bucket", "p/", f"http://127.0.0.1:{server.server_port}", "us-east-1"))


@pytest.mark.parametrize(
    "request_",
    [
        lambda store: store.get("a/key"),
        lambda store: store.list("a/"),
        lambda store: list(store.scan("a/")),
        lambda store: store.get_ranges("a/key", [(0, 1)]),
    ],
    ids=["get", "list", "scan", "ranges"],
)
def test_errors_and_tracebacks_hide_what_a_store_repeats(echo: S3Store, request_: Callable[[S3Store], object]) -> None:
    with pytest.raises(StoreError) as caught:
        request_(echo)
    output = "".join(traceback.format_exception(caught.value))
    assert [s for s in (TOKEN, *WRONG.values()) if s in output] == []


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("s3://AKIDAKID:hush-hush@bucket/p", "http://127.0.0.1:9"),
        ("s3://bucket/p", "http://AKIDAKID:hush-hush@127.0.0.1:9"),
        ("s3:/AKIDAKID:hush-hush@bucket", "http://127.0.0.1:9"),
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str, endpoint: str) -> None:
    ended = l0gc_process("status", "--url", url, "--endpoint-url", endpoint, "-v")
    assert ended.code == 2
    assert "credentials" in ended.stderr
    assert "hush-hush" not in ended.stderr + ended.stdout.decode()
    assert "AKIDAKID" not in ended.stderr + ended.stdout.decode()
