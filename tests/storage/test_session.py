"""The source of credentials and region: separate for each store, although botocore's data about S3 is shared."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import botocore
import pytest
from botocore.exceptions import UnknownServiceError
from botocore.handlers import BUILTIN_HANDLERS
from botocore.loaders import JSONFileLoader
from botocore.session import Session
from botocore.utils import parse_timestamp

from l0gc.errors import UsageError
from l0gc.storage.access import session_of
from l0gc.storage.answers import parse_time
from l0gc.storage.config import StoreConfig


@pytest.fixture(autouse=True)
def _two_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "".join(
            f"[profile {name}]\nregion = {region}\naws_access_key_id = key-of-{name}\naws_secret_access_key = x\n"
            for name, region in (("ann", "eu-north-1"), ("bob", "us-west-2"))
        )
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def known(profile: str | None, region: str | None = None) -> tuple[str | None, str | None]:
    session = session_of(StoreConfig("bucket", profile=profile, region=region))
    credentials = session.get_credentials()
    return session.get_config_variable("region"), credentials.access_key if credentials else None


def test_each_store_has_the_credentials_and_the_region_of_its_own_profile() -> None:
    assert known("ann") == ("eu-north-1", "key-of-ann")
    assert known("bob") == ("us-west-2", "key-of-bob")
    assert known("ann", "us-east-2") == ("us-east-2", "key-of-ann")


def test_a_profile_that_is_given_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "bob")
    assert known(None) == ("us-west-2", "key-of-bob")
    assert known("ann") == ("eu-north-1", "key-of-ann")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert known("ann") == ("eu-north-1", "key-of-ann")
    with pytest.raises(UsageError, match=r"the AWS configuration cannot be used: .*nobody"):
        known(None)


def test_what_botocore_knows_of_s3_is_read_once_for_all_stores() -> None:
    ann, bob = (session_of(StoreConfig("bucket", profile=name)) for name in ("ann", "bob"))
    model = ann.get_service_model("s3")
    descriptions = ann.get_component("data_loader")
    assert bob.get_component("data_loader") is descriptions
    assert len(descriptions.search_paths) == len(set(descriptions.search_paths))
    assert bob.get_service_model("s3").operation_names == model.operation_names


def handlers(session: Session, event: str) -> list[str]:
    emitter = session.get_component("event_emitter")._emitter
    return [f"{h.__module__}.{getattr(h, '__qualname__', h)}" for h in emitter._handlers.prefix_search(event)]


KINDS = sorted({event.split(".")[0] for event, *_ in BUILTIN_HANDLERS} - {"docs"})


def test_clients_have_the_handlers_that_botocore_registers_for_their_service() -> None:
    ours, botocores = session_of(StoreConfig("bucket", profile="ann")), Session(profile="ann")

    def differing(service: str) -> list[str]:
        operations = botocores.get_service_model(service).operation_names
        events = [f"{kind}.{service}.{operation}" for kind in KINDS for operation in operations]
        return [e for e in events if handlers(ours, e) != handlers(botocores, e)]

    assert differing("s3") == []
    assert "choose-signer.sts.AssumeRoleWithWebIdentity" in differing("sts")
    ours.create_client("sts", region_name="us-east-1")
    assert differing("sts") == differing("sso-oidc") == differing("s3") == []


@pytest.mark.parametrize("name", ["endpoints", "partitions", "_retry", "s3/2006-03-01/service-2"])
def test_what_botocore_knows_is_what_it_would_have_read_itself(name: str) -> None:
    ours = session_of(StoreConfig("bucket", profile="ann")).get_component("data_loader")
    path = str(Path(botocore.__file__).parent / "data" / name)
    assert ours.file_loader.load_file(path) == JSONFileLoader().load_file(path) is not None
    with pytest.raises(UnknownServiceError, match="nothing"):
        ours.load_service_model("nothing", "service-2")


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-24T12:31:22.123Z",
        "2026-11-24T12:31:22Z",
        "2026-11-24T12:31:22.123456789Z",
        "20261124T123122Z",
        "2026-11-24T12:31:22+01:00",
        "2026-11-24 12:31:22",
        "1795523738",
        "Tue, 24 Nov 2026 12:31:22 GMT",
        "Tuesday, 24-Nov-26 12:31:22 GMT",
        "Tue Nov 24 12:31:22 2026",
    ],
)
def test_a_timestamp_is_read_as_botocore_reads_it(text: str) -> None:
    by_botocore = parse_timestamp(text)
    assert parse_time(text) == (by_botocore if by_botocore.tzinfo else by_botocore.replace(tzinfo=UTC))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("text", ["2026-11-24 12:31:22", "Tue Nov 24 12:31:22 2026", "Tue, 24 Nov 2026 12:31:22"])
def test_a_time_without_a_zone_is_never_the_machines(text: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert parse_time(text).timestamp() == 1795523482
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "TZ", "no GMT", "12", "Mon", "1:00", "Tue, 41 Nov 2026 12:31:22 GMT", "2026-13-24T12:31:22Z"),
        *("Tue, 24 Nov 2026 12:31:22 CET", "Tue, 24 Nov 2026 12:31:22 GMT, Tue, 24 Nov 2026 12:31:23 GMT"),
    ],
)
def test_what_is_not_a_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


def test_a_store_reads_timestamps_so() -> None:
    session = session_of(StoreConfig("bucket", profile="ann"))
    shape = session.get_service_model("s3").operation_model("HeadObject").output_shape
    answer = {"status_code": 200, "headers": {"Last-Modified": "Tue Nov 24 12:31:22 2026"}, "body": b""}
    parsed = session.get_component("response_parser_factory").create_parser("rest-xml").parse(answer, shape)
    assert parsed["LastModified"] == datetime(2026, 11, 24, 12, 31, 22, tzinfo=UTC)
