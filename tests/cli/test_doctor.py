"""`l0gc doctor`: its exit code, and what it prints."""

from __future__ import annotations

import pytest

from l0gc.cli.output import Output, Result, taking_results
from l0gc.cli.status import print_result
from l0gc.errors import AccessDeniedError, EndedError, L0gcError, StoreUnreachableError, ThrottledError
from l0gc.inspect.doctor import FAILURE, Check, DoctorResult, failure, guarded, ok, warning
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from tests.support.cli import ended_here, l0gc


def printed(*checks: Check) -> Result:
    with taking_results() as results:
        print_result(Output(Settings()), DoctorResult(list(checks)))
    return results[-1]


def test_a_warning_has_a_remedy_and_fails_nothing() -> None:
    result = printed(ok("bucket", "answers"), warning("versioning", "on", "look at it"))
    assert (result.data["failures"], result.data["warnings"]) == (0, 1)
    assert result.text == [
        "ok       bucket      answers",
        "warning  versioning  on",
        "                     -> look at it",
    ]


def test_a_failure_exits_with_6_and_is_reported_after_all_results() -> None:
    with taking_results() as results, pytest.raises(EndedError, match="race: two winners; keep away") as e:
        print_result(
            Output(Settings()), DoctorResult([failure("race", "two winners", "keep away"), ok("cluster", "fine")])
        )
    assert e.value.exit_code == 6
    assert [c["status"] for c in results[-1].data["checks"]] == ["failure", "ok"]


def test_what_ends_a_check_keeps_its_exit_code() -> None:
    def check() -> list[Check]:
        raise AccessDeniedError("no")

    checks = guarded("bucket", check, "ask")
    with taking_results(), pytest.raises(EndedError) as e:
        print_result(Output(Settings()), DoctorResult(checks))
    assert e.value.exit_code == AccessDeniedError("no").exit_code


@pytest.mark.parametrize("error", [ThrottledError("slow down"), StoreUnreachableError("no route")])
def test_a_silent_store_is_not_reported_as_missing_permissions(error: L0gcError) -> None:
    def check() -> list[Check]:
        raise error

    (found,) = guarded("permissions", check, "check the credentials' policy")
    assert (found.status, found.remedy) == (FAILURE, "then run l0gc doctor again")


@pytest.mark.weed
def test_a_missing_bucket_is_reported_once_with_exit_5(bucket: StoreConfig) -> None:
    ended = ended_here("doctor", "--json")
    assert ended.code == 5, ended.stderr
    assert [c["name"] for c in ended.data["checks"] if c["status"] == "failure"] == ["bucket"]
    assert ended.stderr.count("\n") == 1


@pytest.mark.weed
def test_a_healthy_cluster_passes(bucket: StoreConfig) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    result = l0gc("doctor")
    assert result["failures"] == 0
    assert {c["name"]: c["status"] for c in result["checks"]}["cluster"] == "ok"


WRONG = {
    "nobody knows the key": {"AWS_ACCESS_KEY_ID": "nosuch"},
    "the secret is another": {"AWS_SECRET_ACCESS_KEY": "wrong"},
    "there is no such profile": {"AWS_PROFILE": "nosuch"},
    "there are none": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
}


@pytest.mark.weed
@pytest.mark.parametrize("environment", WRONG.values(), ids=WRONG.keys())
def test_doctor_reports_wrong_credentials_like_every_command(
    bucket: StoreConfig, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    l0gc("init", "--create-bucket", "--shards", "4")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(L0gcError) as from_status:
        l0gc("status")
    with pytest.raises(EndedError) as from_doctor:
        l0gc("doctor")
    sentence = str(from_status.value).partition("; ")[0]
    assert sentence in str(from_doctor.value)
    assert from_doctor.value.exit_code == from_status.value.exit_code
