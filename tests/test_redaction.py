"""No secret is printed, logged or stored: secrets are planted in the settings, and commands run where others repeat
them.
"""

from __future__ import annotations

import http.server
import importlib
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from l0gc.cli.main import APART, effects
from l0gc.errors import L0gcError
from l0gc.integrations.iceberg.configuration import catalog_properties
from l0gc.redaction import is_secret, keep_secrets, without_secrets
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.cli.test_refused import ARGUMENTS, FILE
from tests.support.cli import Ended, ended_here, founded
from tests.support.loopback import Serving
from tests.support.tables import configure, sql_catalog

PLANTED = {
    "AWS_ACCESS_KEY_ID": "PLANTEDKEYID01234567",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+key/0123456789",
    "AWS_SESSION_TOKEN": "planted-session-token-0123456789==",
    "L0GC_PUSHGATEWAY": "http://ann:planted-gateway-word@127.0.0.1:9",
    "HTTPS_PROXY": "http://ann:planted-proxy-word@127.0.0.1:9",
    "PYICEBERG_CATALOG__LAKE__URI": "postgres:/ann:planted-uri-word@127.0.0.1:9/lake",
    "PYICEBERG_CATALOG__LAKE__TOKEN": "planted-catalog-token",
    "PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY": "planted-lake-key",
    "PYICEBERG_CATALOG__LAKE__CREDENTIAL": "planted-client:planted+client/secret",
    "PYICEBERG_CATALOG__LAKE__HEADER__AUTHORIZATION": "Bearer planted-bearer-word",
    "PYICEBERG_CATALOG__LAKE__ADLS__CONNECTION_STRING": "Name=lake;AccountKey=planted/account+key==;Suffix=x",
    "PYICEBERG_CATALOG__LAKE__ADLS__SAS_TOKEN": "sv=2024&sig=planted%2Fsignature%3D&se=2030",
    "PYICEBERG_CATALOG__LAKE__GCS__OAUTH2__TOKEN": "planted-gcs-token",
    "PYICEBERG_CATALOG__LAKE__AUTH": json.dumps({"type": "basic", "basic": {"password": 'planted "basic" word'}}),
}
PARTS = [
    *("planted+client/secret", "planted%2Bclient%2Fsecret", "cGxhbnRlZC1jbGllbnQ6cGxhbnRlZCtjbGllbnQvc2VjcmV0"),
    *("planted-bearer-word", "planted/account+key==", "planted%2Fsignature%3D"),
    *('planted "basic" word', 'planted \\"basic\\" word', "planted+%22basic%22+word", "planted%20%22basic%22%20word"),
]
"""Parts of the values above that are secret on their own, in the forms in which protocols send them."""
WORDS = [*(v.rpartition("@")[0].rpartition(":")[2] if "@" in v else v for v in PLANTED.values()), *PARTS]
OTHERS = {
    "verify": ["--engine local"],
    "table drop": ["events --yes"],
    "topic infer": ["events"],
}


def planted_in(*outputs: bytes) -> list[str]:
    return [word for word in WORDS if any(word.encode() in o for o in outputs)]


def outputs_of(ended: Ended) -> tuple[bytes, bytes]:
    return ended.stdout, ended.stderr.encode()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


class _Repeats(http.server.BaseHTTPRequestHandler):
    """Accepts each HEAD, and otherwise repeats what it was sent in the message of an unknown error."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(errors="replace")
        said = " ".join([*self.headers.values(), *PARTS, *PLANTED.values(), sent])
        body = f"<Error><Code>Odd</Code><Message>{escape(said)}</Message></Error>".encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repeating(planted: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Repeats)
    monkeypatch.setenv("L0GC_URL", "s3://bucket/p")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    with Serving(server):
        yield


ALL = {name: (ARGUMENTS | OTHERS).get(name, [""])[0] for name, (does, _) in effects().items() if does != APART}
AS = (["-vv"], ["-vv", "--json"], ["-vv", "--log-format", "json"])


@pytest.mark.parametrize(
    ("command", "ways"),
    [(command, AS[i % len(AS) :][:1]) for i, command in enumerate([*ALL][::2])]
    + [pytest.param(command, AS, marks=pytest.mark.thorough) for command in ALL],
)
def test_no_command_repeats_what_a_store_repeats(
    command: str, ways: Sequence[list[str]], repeating: None, tmp_path: Path
) -> None:
    (tmp_path / "records").write_bytes(b"1\n")
    given = ALL[command].replace(FILE, str(tmp_path / "records")).replace("EPOCH", "0").split()
    for how in ways:
        ended = ended_here(*command.split(), *given, *how)
        assert planted_in(*outputs_of(ended)) == []
        assert ended.code != 0 or command in {"config show", "completion", "help", "version"}


@pytest.mark.parametrize("value", ["ends\n", "tab\tin", "ends "])
@pytest.mark.parametrize(
    "name", ["AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3", "AWS_REGION"]
)
def test_a_multi_word_variable_is_named_before_any_request(
    name: str, value: str, planted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"{PLANTED.get(name, 'http://127.0.0.1:9')}{value}")
    ended = ended_here("status", "--url", "s3://bucket/p", "-v")
    assert ended.code == 2
    said = "ends with a newline" if value.endswith("\n") else "has a space at an end, or a control character in it"
    assert f"{name} {said}" in ended.stderr
    assert planted_in(*outputs_of(ended)) == []


@pytest.mark.parametrize("part", ["AccessKeyId", "SecretAccessKey", "SessionToken"])
def test_a_key_of_a_process_that_is_not_one_word_is_named(
    part: str, planted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = {"AccessKeyId": "PROCESSKEYID0123", "SecretAccessKey": "process-secret-key", "SessionToken": "process-token"}
    said[part] += "\n"
    (tmp_path / "said.json").write_text(json.dumps({"Version": 1, **said}))
    (tmp_path / "config").write_text(f"[profile x]\ncredential_process = cat {tmp_path / 'said.json'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    ended = ended_here("status", "--url", "s3://bucket/p", "--profile", "x", "-v")
    assert (ended.code, "(custom-process) ends with a newline" in ended.stderr) == (2, True)
    assert [v for v in said.values() if v.strip() in ended.stderr] == []


def test_an_endpoint_that_is_not_one_word_is_a_usage_error() -> None:
    ended = ended_here("status", "--url", "s3://b/p", "--endpoint-url", "http://127.0.0.1:9\n")
    assert (ended.code, ended.stderr) == (2, "l0gc: the endpoint ends with a newline: set it without that\n")


@pytest.mark.thorough
def test_a_catalog_that_cannot_be_opened_shows_no_secret_and_stores_none(
    endpoint: str, planted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/p", endpoint_url=endpoint)
    monkeypatch.setenv("L0GC_URL", config.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    founded()
    sql_catalog(monkeypatch, tmp_path)
    assert ended_here("table", "create", "events", "--catalog", "lake").code == 0
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__TYPE")
    configure(monkeypatch, uri=PLANTED["PYICEBERG_CATALOG__LAKE__URI"])
    (tmp_path / "records").write_bytes(b"1\n")
    assert ended_here("upload", "events", str(tmp_path / "records")).code == 0
    assert ended_here("reconcile", "--engine", "local").code == 0
    runs = [ended_here("table", "sync", *how) for how in AS]
    runs += [ended_here("gc", "--engine", "local", "--json", "--log-format", "json", "-v"), ended_here("status")]
    assert [r.code for r in runs] == [1, 1, 1, 1, 0]
    assert "lake" in runs[0].stderr
    store = S3Store(config)
    stored = {key: store.get(key).body for page in store.scan("") for key in page.keys}
    assert b"the uri: postgres:/***@" in stored["l0gc/attempts/table-sync.json"]
    assert planted_in(*stored.values(), *(o for r in runs for o in outputs_of(r))) == []


def test_a_catalog_with_keys_of_its_own_gets_no_token(monkeypatch: pytest.MonkeyPatch, planted: None) -> None:
    for name in PLANTED:
        if "LAKE" in name:
            monkeypatch.delenv(name)
    store = S3Store(StoreConfig("bucket", "", "http://127.0.0.1:9", "eu-west-1"))
    configure(monkeypatch, uri="sqlite:///x")
    ours = catalog_properties("lake", store)
    assert ours["s3.session-token"] == PLANTED["AWS_SESSION_TOKEN"]
    for own in (
        {"s3__access_key_id": "theirs"},
        {"client__secret_access_key": "theirs"},
        {"s3__role_arn": "arn:theirs"},
    ):
        with monkeypatch.context() as patch:
            configure(patch, **own)
            theirs = catalog_properties("lake", store)
        assert (theirs["s3.endpoint"], theirs["s3.region"]) == ("http://127.0.0.1:9", "eu-west-1")
        assert [v for v in theirs.values() if v in PLANTED.values()] == []


def test_credentials_of_a_profile_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[profile x]\naws_access_key_id = OFTHEPROFILE0123\naws_secret_access_key = of/the/profile+0123\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    store = S3Store(StoreConfig("bucket", "", "http://127.0.0.1:9", profile="x"))
    assert store.client is not None
    said = str(L0gcError("sent of/the/profile+0123 and of%2Fthe%2Fprofile%2B0123 of OFTHEPROFILE0123"))
    assert said == "sent *** and *** of ***"


def test_what_is_secret_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L0GC_TEST_PASSWORD", "hush-hush\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token")
    monkeypatch.setenv("SHORT_TOKEN", "main")
    keep_secrets({"token": "of-a-catalog"})
    said = without_secrets("hush-hush of-a-catalog /var/run/token main http://ann:pw@host/x")
    assert said == "*** *** /var/run/token main http://***@host/x"


HARMLESS = {
    *(
        "s3.sse-kms-key-id",
        "gcp.bigquery.credential-file",
        "gcs.oauth2.token-expires-at",
        "auth",
        "auth.manager",
        "key",
    ),
    *(
        "hive.kerberos-authentication",
        "adls.blob-storage-authority",
        "adls.dfs-storage-authority",
        "vended-credentials",
    ),
    *("oauth2-server-uri",),
}
"""Properties whose names sound like secrets, but which hold places, ways, or names of their own."""
SOUND = re.compile(r"key|secret|token|credential|password|auth|connection")


def names_of_pyiceberg() -> set[str]:
    """Return every property that the installed PyIceberg names."""
    parts = ("io", "catalog", *(f"catalog.{kind}" for kind in ("rest", "sql", "glue", "dynamodb", "hive")))
    found = set[str]()
    for part in parts:
        with suppress(ImportError):
            constants = vars(importlib.import_module(f"pyiceberg.{part}")).items()
            found |= {v for n, v in constants if n.isupper() and isinstance(v, str) and re.fullmatch(r"[a-z0-9.-]+", v)}
    return found


@pytest.mark.parametrize("name", sorted(n for n in names_of_pyiceberg() - HARMLESS if SOUND.search(n)))
def test_every_property_of_pyiceberg_that_holds_a_secret_is_removed(name: str) -> None:
    value = f"planted:of-{name}"
    keep_secrets({name: value})
    assert without_secrets(f"sent {value} and {value.partition(':')[2]}") == "sent *** and ***"


def test_every_secret_of_botocore_is_removed() -> None:
    """The secrets are its settings, its credentials' fields, and the request parameters that its models mark as
    sensitive.
    """
    from botocore.credentials import ReadOnlyCredentials
    from botocore.loaders import Loader

    model = Loader().load_service_model("s3", "service-2")
    shapes = {name for name, shape in model["shapes"].items() if shape.get("sensitive")}
    members = {m for s in model["shapes"].values() for m, of in s.get("members", {}).items() if of["shape"] in shapes}
    names = {*ReadOnlyCredentials._fields} - {"account_id"} | {"aws_secret_access_key", "aws_session_token"} | members
    assert "SSECustomerKey" in names
    of_kms = {n for n in names if "KMS" in n or n == "KeyId"}  # names of keys, not the keys
    assert [n for n in sorted(names - of_kms) if not is_secret(n)] == []
