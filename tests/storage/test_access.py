"""Both clients send the same requests, as botocore decides, whichever setting chooses the place and the credentials.

No name is resolved: requests for AWS go through a loopback proxy that answers for every host.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from l0gc.errors import StoreError, UsageError
from l0gc.settings import load_settings
from l0gc.storage.access import Access
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.certificates import Authority
from tests.support.recorder import Recorder, Seen

KEYS = "aws_access_key_id = AKID\naws_secret_access_key = secret\n"


@dataclass(frozen=True)
class Setting:
    """Settings, and where requests go with them; `{proxy}`, `{server}`, `{tls}` and `{ca}` stand for the test's own servers.

    Attributes:
        profile: the lines of the profile after its keys; `sections` is the rest of the configuration file.
        file: the content of l0gc's settings file.
        expected: the bucket's URL, the signature's region, and the server that the requests reach first.
    """

    name: str
    expected: tuple[str, str, str]
    environment: dict[str, str] = field(default_factory=dict)
    profile: str = ""
    sections: str = ""
    file: str = ""
    bucket: str = "bucket"
    user: str = ""
    fallback: str = ""


THROUGH = {"HTTPS_PROXY": "{proxy}", "AWS_CA_BUNDLE": "{ca}"}
AWS = "https://bucket.s3.eu-west-1.amazonaws.com"
HERE = ("{server}/bucket", "eu-west-1", "server")
TLS = ("{tls}/bucket", "eu-west-1", "tls")


def via_aws(name: str, host: str, region: str = "eu-west-1", bucket: str = "bucket", **more: object) -> Setting:
    """Return a setting that sends requests to AWS, through the proxy."""
    environment = {**THROUGH, "AWS_REGION": region, **more.pop("environment", {})}  # type: ignore[dict-item]
    return Setting(name, (host, region, "proxy"), environment, bucket=bucket, **more)  # type: ignore[arg-type]


def to_server(name: str, environment: dict[str, str] | None = None, **more: object) -> Setting:
    """Return a setting that sends requests straight to the server."""
    known = {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL_S3": "{server}"}
    more = {"expected": HERE, **more}
    return Setting(name, environment=known | (environment or {}), **more)  # type: ignore[arg-type]


SETTINGS: Sequence[Setting] = (
    # the place of the bucket
    via_aws("region", AWS),
    via_aws("region: us-east-1", "https://bucket.s3.amazonaws.com", "us-east-1"),
    via_aws("region: cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
    via_aws("region: us-gov-west-1", "https://bucket.s3.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
    Setting("region of the profile", (AWS, "eu-west-1", "proxy"), THROUGH, profile="region = eu-west-1"),
    Setting("region of the file", (AWS, "eu-west-1", "proxy"), THROUGH, file='region = "eu-west-1"'),
    via_aws("dots", "https://s3.eu-west-1.amazonaws.com/my.dotted.bucket", bucket="my.dotted.bucket"),
    to_server("dots on a server", bucket="my.dotted.bucket", expected=("{server}/my.dotted.bucket", *HERE[1:])),
    via_aws(
        "dual-stack", "https://bucket.s3.dualstack.eu-west-1.amazonaws.com",
        environment={"AWS_USE_DUALSTACK_ENDPOINT": "true"},
    ),
    via_aws(
        "dual-stack of the profile", "https://bucket.s3.dualstack.eu-west-1.amazonaws.com",
        profile="use_dualstack_endpoint = true",
    ),
    via_aws(
        "FIPS", "https://bucket.s3-fips.us-west-2.amazonaws.com", "us-west-2",
        environment={"AWS_USE_FIPS_ENDPOINT": "true"},
    ),
    via_aws(
        "FIPS of the profile", "https://bucket.s3-fips.us-west-2.amazonaws.com", "us-west-2",
        profile="use_fips_endpoint = true",
    ),
    via_aws(
        "path style", "https://s3.eu-west-1.amazonaws.com/bucket", profile="s3 =\n  addressing_style = path",
    ),
    via_aws(
        "acceleration", "https://bucket.s3-accelerate.amazonaws.com", profile="s3 =\n  use_accelerate_endpoint = true",
    ),
    # servers other than AWS
    to_server("endpoint"),
    to_server("endpoint of all services", {"AWS_ENDPOINT_URL_S3": "", "AWS_ENDPOINT_URL": "{server}"}),
    to_server("endpoint of the profile", {"AWS_ENDPOINT_URL_S3": ""}, profile="endpoint_url = {server}"),
    to_server("endpoint of the file", {"AWS_ENDPOINT_URL_S3": ""}, file='endpoint-url = "{server}"'),
    to_server(
        "endpoint of a services section", {"AWS_ENDPOINT_URL_S3": ""}, profile="services = here",
        sections="[services here]\ns3 =\n  endpoint_url = {server}\n",
    ),
    to_server("the file's endpoint before the environment's", {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"},
              file='endpoint-url = "{server}"'),
    to_server("an endpoint below a path", {"AWS_ENDPOINT_URL_S3": "{server}/s3/"},
              expected=("{server}/s3/bucket", *HERE[1:])),
    via_aws(
        "configured endpoints ignored", AWS,
        environment={"AWS_ENDPOINT_URL_S3": "{server}", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
    ),
    via_aws(
        "configured endpoints ignored by the profile", AWS,
        environment={"AWS_ENDPOINT_URL": "{server}"}, profile="ignore_configured_endpoint_urls = true",
    ),
    Setting(
        "virtual addressing on a server", ("http://bucket.store.test", "eu-west-1", "proxy"),
        {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL_S3": "http://store.test", "HTTP_PROXY": "{proxy}"},
        profile="s3 =\n  addressing_style = virtual",
    ),
    # certificates
    to_server("CA bundle", {"AWS_ENDPOINT_URL_S3": "{tls}", "AWS_CA_BUNDLE": "{ca}"}, expected=TLS),
    to_server("CA bundle of the profile", {"AWS_ENDPOINT_URL_S3": "{tls}"}, profile="ca_bundle = {ca}", expected=TLS),
    to_server("CA bundle of requests", {"AWS_ENDPOINT_URL_S3": "{tls}", "REQUESTS_CA_BUNDLE": "{ca}"}, expected=TLS),
    # proxies
    to_server("HTTP_PROXY", {"HTTP_PROXY": "{proxy}"}, expected=(*HERE[:2], "proxy")),
    to_server("http_proxy", {"http_proxy": "{proxy}"}, expected=(*HERE[:2], "proxy")),
    to_server("a proxy without a scheme", {"HTTP_PROXY": "{proxy_host}"}, expected=(*HERE[:2], "proxy")),
    to_server("a proxy with a user", {"HTTP_PROXY": "http://ann:p%40ss@{proxy_host}"}, expected=(*HERE[:2], "proxy"),
              user="ann:p@ss"),
    to_server("a proxy for TLS", {"AWS_ENDPOINT_URL_S3": "{tls}", **THROUGH}, expected=(*TLS[:2], "proxy")),
    to_server("a proxy of the other scheme", {"HTTPS_PROXY": "{proxy}"}),
    to_server("ALL_PROXY, which botocore does not read", {"ALL_PROXY": "{proxy}", "all_proxy": "{proxy}"}),
    to_server("NO_PROXY=host", {"HTTP_PROXY": "{proxy}", "NO_PROXY": "127.0.0.1"}),
    to_server("NO_PROXY=host:port", {"HTTP_PROXY": "{proxy}", "NO_PROXY": "other.test,{server_host}"}),
    to_server("NO_PROXY=*", {"HTTP_PROXY": "{proxy}", "NO_PROXY": "*"}),
    to_server("NO_PROXY of another host", {"HTTP_PROXY": "{proxy}", "NO_PROXY": "10.0.0.0/8,other.test"},
              expected=(*HERE[:2], "proxy")),
    to_server("NO_PROXY=network, which botocore does not read", {"HTTP_PROXY": "{proxy}", "NO_PROXY": "127.0.0.0/8"},
              expected=(*HERE[:2], "proxy")),
    # settings that only obstore would read
    to_server("other endpoints", {"AWS_ENDPOINT": "http://127.0.0.1:9", "AWS_BUCKET": "other", "AWS_BUCKET_NAME": "other"}),
    to_server("AWS_SKIP_SIGNATURE", {"AWS_SKIP_SIGNATURE": "true"}),
    to_server("AWS_S3_EXPRESS", {"AWS_S3_EXPRESS": "true"}),
    to_server("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}),
    to_server("AWS_PROXY_URL", {"AWS_PROXY_URL": "{proxy}", "AWS_ALLOW_INVALID_CERTIFICATES": "maybe"}),
    to_server("AWS_REQUEST_PAYER and others", {
        "AWS_REQUEST_PAYER": "perhaps", "AWS_UNSIGNED_PAYLOAD": "perhaps", "AWS_CONDITIONAL_PUT": "perhaps",
        "AWS_COPY_IF_NOT_EXISTS": "perhaps", "AWS_DISABLE_TAGGING": "perhaps", "AWS_DISABLE_BULK_DELETE": "perhaps",
        "AWS_METADATA_ENDPOINT": "{proxy}", "AWS_IMDSV1_FALLBACK": "perhaps", "AWS_TOKEN": "other",
    }),
    to_server("SSL_CERT_FILE", {"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": "/dev/null"}),
    # settings that change requests, but not where they go
    to_server("checksums", profile="request_checksum_calculation = when_required"),
    to_server("retries", profile="retry_mode = adaptive\nmax_attempts = 1"),
    to_server("STS", profile="sts_regional_endpoints = legacy"),
    # settings that obstore does not support
    to_server("AWS_CHECKSUM_ALGORITHM", {"AWS_CHECKSUM_ALGORITHM": "SHA256"}, fallback="AWS_CHECKSUM_ALGORITHM is set"),
    to_server("AWS_SERVER_SIDE_ENCRYPTION", {"AWS_SERVER_SIDE_ENCRYPTION": "sse-c"}, fallback="AWS_SERVER_SIDE_ENCR"),
)  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def recorders(authority: Authority) -> Iterator[dict[str, Recorder]]:
    with (
        Recorder("server", authority) as server,
        Recorder("proxy", authority) as proxy,
        Recorder("tls", authority, tls=True) as tls,
    ):
        yield {r.name: r for r in (server, proxy, tls)}


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "ssl_cert_file",
        "ssl_cert_dir",
        "requests_ca_bundle",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def requests(store: S3Store, recorders: dict[str, Recorder]) -> tuple[list[Seen], list[Seen]]:
    """Return the requests of boto3 and of obstore for a read and a listing; boto3 confirms the listing's end for
    obstore.
    """
    by_client = []
    for reads in (
        lambda: (store.get("k"), store.list("d/")),
        lambda: (store.get_ranges("k", [(0, 1)]), list(store.scan("d/"))),
    ):
        for r in recorders.values():
            r.seen.clear()
        reads()
        by_client.append([seen for r in recorders.values() for seen in r.seen])
    return by_client[0], by_client[1]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_both_clients_send_the_same_requests_as_botocore_decides(
    setting: Setting,
    recorders: dict[str, Recorder],
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {name: r.url for name, r in recorders.items()}
    known |= {f"{name}_host": r.host for name, r in recorders.items()} | {"ca": str(authority.bundle)}
    (tmp_path / "config").write_text(f"[profile p]\n{KEYS}{setting.profile}\n{setting.sections}".format_map(known))
    (tmp_path / "l0gc.toml").write_text(f'profile = "p"\n{setting.file}'.format_map(known))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in setting.environment.items():
        monkeypatch.setenv(name, value.format_map(known))
    said = {"region": setting.environment.get("AWS_REGION")} | load_settings(str(tmp_path / "l0gc.toml")).values
    store = S3Store(StoreConfig.from_url(f"s3://{setting.bucket}/p", **said))

    boto3s, obstores = requests(store, recorders)
    url, region, via = setting.expected
    url = url.format_map(known)
    expected = [Seen(via, setting.user, at, "AKID", region, "s3", "") for at in (f"{url}/p/k", url)]
    assert [replaced(s) for s in boto3s] == expected
    assert [replaced(s) for s in obstores] == (expected if setting.fallback else [*expected, expected[-1]])
    assert bool(store.access.bulk) != bool(setting.fallback)
    assert setting.fallback in store.access.obstacle


def test_what_obstore_cannot_be_given_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    express = S3Store(StoreConfig("data--use1-az4--x-s3", region="us-east-1")).access
    assert (express.bulk, express.obstacle) == (None, "requests are signed by v4-s3express for s3express")
    monkeypatch.setenv("HTTPS_PROXY", "https://127.0.0.1:9")
    proxy = S3Store(StoreConfig("bucket")).access
    assert (proxy.bulk, proxy.obstacle) == (None, "the proxy is reached by TLS")


def test_no_client_trusts_what_only_the_other_one_would(
    recorders: dict[str, Recorder], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore takes SSL_CERT_FILE for the system's certificates, and boto3 ignores it."""
    monkeypatch.setattr("l0gc.storage.bulk.ATTEMPTS", 0)
    monkeypatch.setattr("l0gc.storage.access.ATTEMPTS", 1)
    for name, value in {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    store = S3Store(StoreConfig("bucket", endpoint_url=recorders["tls"].url))
    assert store.access.bulk
    for read in (lambda: store.get("k"), lambda: store.get_ranges("k", [(0, 1)])):
        with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
            read()


def test_a_ca_bundle_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    with pytest.raises(UsageError, match=r"the CA bundle /nowhere/ca\.pem cannot be read: check AWS_CA_BUNDLE"):
        S3Store(StoreConfig("bucket")).get("k")


@pytest.mark.parametrize("bundle", ["", "no certificate"])
def test_a_ca_bundle_that_obstore_cannot_read_is_left_to_boto3(
    bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if bundle:
        file.write_text(bundle)
    for name, value in {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(file if bundle else tmp_path))
    access = S3Store(StoreConfig("bucket", endpoint_url="https://127.0.0.1:9")).access
    assert access.bulk is None
    assert ("o certificate" if bundle else "s a directory") in access.obstacle


def test_another_machine_is_told_where_requests_go_and_no_secret(
    recorders: dict[str, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have neither the driver's profile nor its environment."""
    server = recorders["server"]
    (tmp_path / "config").write_text(
        f"[profile p]\n{KEYS}region = eu-west-1\nendpoint_url = http://store.test\ns3 =\n  addressing_style = virtual\n"
    )
    with monkeypatch.context() as driver:
        driver.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        settled = S3Store(StoreConfig("bucket", "p/", profile="p")).access.settled()
    assert "secret" not in repr(settled)
    for name, value in {"AWS_ACCESS_KEY_ID": "SENT", "AWS_SECRET_ACCESS_KEY": "x", "HTTP_PROXY": server.url}.items():
        monkeypatch.setenv(name, value)
    read = ("http://bucket.store.test/p/k", "SENT", "eu-west-1")
    listing = ("http://bucket.store.test", "SENT", "eu-west-1")
    boto3s, obstores = requests(S3Store(msgspec.structs.replace(settled, profile=None)), recorders)
    assert [(s.url.rstrip("/"), s.key_id, s.region) for s in boto3s] == [read, listing]
    assert [(s.url.rstrip("/"), s.key_id, s.region) for s in obstores] == [read, listing, listing]


def test_threads_that_need_the_first_clients_at_once_all_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached property of Python 3.11 holds a lock while it is computed, so the order of locks matters."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    for _ in range(6):
        access = S3Store(StoreConfig("bucket", endpoint_url="http://127.0.0.1:9")).access
        names = ("bulk", "client", "endpoint_url", "reach", "credentials")
        start, got = threading.Barrier(len(names)), list[object]()

        def first(
            name: str, access: Access = access, start: threading.Barrier = start, got: list[object] = got
        ) -> None:
            start.wait()
            got.append(getattr(access, name))

        threads = [threading.Thread(target=first, args=(name,), daemon=True) for name in names]
        for t in threads:
            t.start()
        for t in threads:
            t.join(20)
        assert len(got) == len(names)


def replaced(seen: Seen) -> Seen:
    """Return the request without the slash at the end of a listing's URL, which only one client writes."""
    return Seen(seen.via, seen.user, seen.url.rstrip("/"), seen.key_id, seen.region, seen.service, seen.token)
