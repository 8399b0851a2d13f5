"""Runs the whole loop wherever boto3 works: through proxies, with a private CA, with sessions that end, on a bucket
with dots; by both clients, and by boto3 alone if obstore lacks a setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from botocore.credentials import Credentials

from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.certificates import Authority
from tests.support.cli import founded, l0gc, printed
from tests.support.outcomes import Outcome
from tests.support.proxy import HOST, Proxy
from tests.support.sessions import Sessions

pytestmark = pytest.mark.weed

LINES = [f'{{"n":{n},"of":"{n % 7}"}}'.encode() for n in range(2000)]
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
REQUESTS = 25
"""The number of requests after which the store ends a session: several times in each command."""


class Way:
    """One way to the store: the environment of its clients, and the proxies and issuers in between."""

    def __init__(self, weed: SeaweedFS, folder: Path, stack: ExitStack) -> None:
        self.weed, self.folder, self.stack = weed, folder, stack
        self.environment = weed.environment()
        self.bucket = "ways"
        self.proxy: Proxy | None = None
        self.sessions: Sessions | None = None

    def direct(self) -> None:
        pass

    def dots(self) -> None:
        self.bucket = "ways.with.dots"

    def tls(self) -> None:
        authority = Authority(self.folder)
        self.proxy = self.stack.enter_context(Proxy(self.weed.endpoint_url, tls=authority.context(HOST)))
        self.environment |= {"AWS_ENDPOINT_URL_S3": self.proxy.endpoint_url, "AWS_CA_BUNDLE": str(authority.bundle)}

    def forward(self) -> None:
        self.proxy = self.stack.enter_context(Proxy(self.weed.endpoint_url))
        self.environment |= {"AWS_ENDPOINT_URL_S3": "http://store.test", "HTTP_PROXY": self.proxy.endpoint_url}

    def short(self) -> None:
        self._with(Sessions(seconds=900))

    def ending(self) -> None:
        self._with(Sessions(seconds=3600, requests=REQUESTS))

    def _with(self, sessions: Sessions) -> None:
        self.sessions = self.stack.enter_context(sessions)
        keys = Credentials(*(self.environment.pop(name) for name in KEYS))
        admit = partial(self.sessions.admit, keys, self.weed.region)
        self.proxy = self.stack.enter_context(Proxy(self.weed.endpoint_url, admit=admit))
        self.environment |= {
            "AWS_ENDPOINT_URL_S3": self.proxy.endpoint_url,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": self.sessions.url,
        }


@pytest.fixture
def way(weed: SeaweedFS, tmp_path: Path) -> Iterator[Way]:
    with ExitStack() as stack:
        yield Way(weed, tmp_path, stack)


@pytest.mark.parametrize(
    ("through", "client"),
    [
        *((way, "both") for way in (Way.direct, Way.dots, Way.tls, Way.forward, Way.short, Way.ending)),
        *((way, "boto3 alone") for way in (Way.tls, Way.forward, Way.ending)),
    ],
)
@pytest.mark.thorough
def test_the_loop_goes_round_wherever_boto3_works(
    way: Way, through: Callable[[Way], None], client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(way)
    if client != "both":
        way.environment["AWS_CHECKSUM_ALGORITHM"] = "SHA256"  # only obstore reads this variable, and nothing resets it
    for name, value in way.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"{way.bucket}-{client.replace(' ', '-')}-{through.__name__}"
    monkeypatch.setenv("L0GC_URL", f"s3://{bucket}/some/prefix")
    assert bool(S3Store(StoreConfig(bucket)).access.bulk) == (client == "both")
    lines = way.folder / "lines"
    lines.write_bytes(b"\n".join(LINES) + b"\n")

    founded(2)
    objects = [o for _ in range(4) for o in l0gc("upload", "events", str(lines), "--batch-bytes", "8KiB")["objects"]]
    l0gc("epoch", "advance")
    l0gc("housekeep", "--barrier")
    l0gc("reconcile", "--engine", "local")
    l0gc("compute-watermark", "--engine", "local")
    swept = l0gc("sweep", "--engine", "local")
    assert (swept["deleted"], swept["failed"]) == (len(objects), 0)
    read = b"".join(printed("read", "events", "--partition", str(p)) for p in range(2))
    assert sorted(read.split()) == sorted(LINES * 4)
    doctor = l0gc("doctor")
    assert doctor["failures"] == 0
    assert ("client" in {c["name"] for c in doctor["checks"]}) == (client != "both")

    if way.proxy:
        kinds = {r.operation for r in way.proxy.requests}
        assert kinds >= {"GetObject", "ListObjectsV2", "DeleteObjects", "PutObject if-none-match", "HeadBucket"}
        assert way.proxy.outcomes[Outcome.PASS] == len(way.proxy.requests) > 100
    if way.sessions:
        assert way.sessions.issued > 10
        assert (way.sessions.expired > 10) == (through is Way.ending)
