"""Where credentials and the region come from: of each store its own, though what botocore knows of S3 is shared."""

from __future__ import annotations

from pathlib import Path

import botocore
import pytest
from botocore.exceptions import UnknownServiceError
from botocore.loaders import JSONFileLoader

from l0gc.errors import UsageError
from l0gc.storage.config import StoreConfig
from l0gc.storage.connection import session_of


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
    return session.region_name, credentials.access_key if credentials else None


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
    model = ann._session.get_service_model("s3")
    descriptions = ann._session.get_component("data_loader")
    assert bob._session.get_component("data_loader") is descriptions
    assert len(descriptions.search_paths) == len(set(descriptions.search_paths))
    assert bob._session.get_service_model("s3").operation_names == model.operation_names


@pytest.mark.parametrize("name", ["endpoints", "partitions", "_retry", "s3/2006-03-01/service-2"])
def test_what_botocore_knows_is_what_it_would_have_read_itself(name: str) -> None:
    ours = session_of(StoreConfig("bucket", profile="ann"))._session.get_component("data_loader")
    path = str(Path(botocore.__file__).parent / "data" / name)
    assert ours.file_loader.load_file(path) == JSONFileLoader().load_file(path) is not None
    with pytest.raises(UnknownServiceError, match="nothing"):
        ours.load_service_model("nothing", "service-2")
