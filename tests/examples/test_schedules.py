"""cron, systemd, Kubernetes, Airflow: l0gc accepts the commands that they run, and important failures are reported."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import click
import pytest
import yaml

from l0gc.collect.gc_steps import STEPS
from l0gc.streamlog.controller.handle import EPOCH_INTERVAL_S
from tests.examples.command_lines import parse
from tests.support.cli import BIN

EXAMPLES = Path(__file__).parents[2] / "examples"
CRON_LINES = [
    line.lstrip("# ")
    for crontab in ("l0gc.crontab", "separate.crontab")
    for line in (EXAMPLES / "cron" / crontab).read_text().splitlines()
    if re.match(r"(# )?[*\d][\d*/,-]* +", line)
]


def test_a_line_that_l0gc_would_refuse_is_noticed() -> None:
    assert parse("l0gc sweep --min-age 1h --json")[1]["min_age_s"] == 3600
    for wrong in ("l0gc swep", "l0gc sweep --min-ages 1h", "l0gc sweep --min-age soon", "l0gc topic create x"):
        with pytest.raises(click.UsageError):
            parse(wrong)


# -- cron ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", CRON_LINES)
def test_a_cron_job_runs_a_command_that_l0gc_takes_as_its_user(line: str) -> None:
    times, user, job = line.split()[:5], line.split()[5], line.split(None, 6)[6]
    assert all(re.fullmatch(r"[\d*/,-]+", t) for t in times)
    assert user == "l0gc"
    assert job.startswith("job ")
    assert "%" not in job  # cron replaces them by newlines
    parse(f"l0gc {job.removeprefix('job ')} --metrics-file /var/lib/l0gc/l0gc.prom -v --log-format json")


def test_the_crontabs_have_each_step_and_a_verification() -> None:
    jobs = [line.split()[7] for line in CRON_LINES]
    assert jobs[:2] == ["gc", "verify"]
    assert {*jobs[2:]} == {*STEPS, "verify"} - {"table-sync"}
    for crontab in ("l0gc.crontab", "separate.crontab"):
        assert re.search(r"^MAILTO=\w", (EXAMPLES / "cron" / crontab).read_text(), re.MULTILINE)


@pytest.mark.parametrize("url", ["", "s3://no-such-bucket/p"])
def test_a_job_that_fails_is_mailed_and_logged_with_its_time(tmp_path: Path, url: str) -> None:
    """The test runs the shell function of the settings as cron does, in separate folders."""
    text = (EXAMPLES / "cron/env.example").read_text()
    text = re.sub("/var/(log|lib)/l0gc", str(tmp_path), text).replace("s3://my-bucket/my-cluster", url)
    (tmp_path / "env").write_text(text)
    (tmp_path / "l0gc").write_text(f'#!/bin/sh\nexec {shlex.join(BIN)} "$@"\n')
    (tmp_path / "l0gc").chmod(0o755)
    environment = os.environ | {"BASH_ENV": str(tmp_path / "env"), "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

    def job(before: str = "") -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", f"{before} job sweep"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert job(f"exec 9> {tmp_path}/sweep.lock; flock 9;").stdout == ""  # the previous one still runs
    assert not (tmp_path / "sweep.prom").exists()
    done = job()
    assert re.fullmatch(rf"l0gc sweep ended with [1-9]\d*: see {tmp_path}/l0gc.log\n", done.stdout)
    assert done.stderr == ""
    events = [json.loads(line) for line in (tmp_path / "l0gc.log").read_text().splitlines()]
    assert events[-1]["event"] == "error"
    assert all(event["ts"] for event in events)
    assert 'l0gc_exit_code{command="sweep"' in (tmp_path / "sweep.prom").read_text()


@pytest.mark.parametrize("example", ["cron/env.example", "systemd/env.example"])
def test_a_file_of_settings_holds_no_secret(example: str) -> None:
    text = (EXAMPLES / example).read_text()
    assert "L0GC_URL=s3://" in text
    assert "SECRET" not in text
    lines = [line.strip("# ") for line in text.splitlines() if re.match(r"#? ?(export )?[A-Z0-9_]+=", line)]
    assert all(line.startswith("export ") for line in lines) == example.startswith("cron")


# -- systemd ------------------------------------------------------------------------------------------------------------

SERVICE = (EXAMPLES / "systemd/l0gc@.service").read_text()


def _directives(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))


def test_the_service_runs_what_l0gc_takes() -> None:
    for command in ("gc", "verify"):
        assert parse(_directives(SERVICE)["ExecStart"].replace("%i", command))[0] == command


def test_a_stop_is_sent_to_l0gc_alone_and_is_no_failure() -> None:
    service = _directives(SERVICE)
    assert service["Type"] == "oneshot"
    assert service["KillMode"] == "mixed"
    assert service["SuccessExitStatus"] == "143"
    assert service["EnvironmentFile"] == "/etc/l0gc/env"
    assert "MemoryDenyWriteExecute" not in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_the_units_and_finds_the_service_shut_in(tmp_path: Path) -> None:
    units = list[Path]()
    for command in ("gc", "verify"):
        service, timer = tmp_path / f"l0gc@{command}.service", tmp_path / f"l0gc-{command}.timer"
        service.write_text(SERVICE.replace("/opt/l0gc/bin/l0gc", "/bin/true"))  # the program has to exist
        timer.write_text((EXAMPLES / "systemd" / timer.name).read_text())
        units += [service, timer]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, text=True, check=False
    )
    messages = [line for line in verified.stderr.splitlines() if "l0gc" in line]
    assert (verified.returncode, messages) == (0, [])
    exposed = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(units[0])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert exposed.returncode == 0, exposed.stdout[-2000:]


@pytest.mark.parametrize("command", ["gc", "verify"])
def test_a_timer_starts_the_service_with_its_command(command: str) -> None:
    timer = _directives((EXAMPLES / f"systemd/l0gc-{command}.timer").read_text())
    assert timer["Unit"] == f"l0gc@{command}.service"
    assert timer["WantedBy"] == "timers.target"


# -- Kubernetes ---------------------------------------------------------------------------------------------------------

MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((EXAMPLES / "kubernetes/cronjob.yaml").read_text()))
CRON_JOBS = {m["metadata"]["name"]: m["spec"] for m in MANIFESTS if m["kind"] == "CronJob"}


def test_the_example_has_two_cron_jobs_and_their_account() -> None:
    assert [m["kind"] for m in MANIFESTS] == ["ServiceAccount", "CronJob", "CronJob"]
    assert set(CRON_JOBS) == {"l0gc-gc", "l0gc-verify"}


@pytest.mark.parametrize("name", CRON_JOBS)
def test_a_cron_job_forbids_concurrent_runs_and_privileges(name: str) -> None:
    job = CRON_JOBS[name]
    assert job["concurrencyPolicy"] == "Forbid"
    assert len(job["schedule"].split()) == 5
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    assert pod["serviceAccountName"] == MANIFESTS[0]["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert not any("SECRET" in e["name"] for e in container["env"])


@pytest.mark.parametrize("name", CRON_JOBS)
def test_a_cron_job_has_arguments_that_l0gc_takes(name: str) -> None:
    (container,) = CRON_JOBS[name]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert parse(container["args"])[0] == name.removeprefix("l0gc-")


# -- Airflow ------------------------------------------------------------------------------------------------------------


class _Dag:
    """Replaces Airflow's class, and keeps its arguments."""

    open: ClassVar[_Dag | None] = None

    def __init__(self, **given: Any) -> None:
        self.given, self.tasks = given, list[_Task]()

    def __enter__(self) -> Self:
        _Dag.open = self
        return self

    def __exit__(self, *exc: object) -> None:
        _Dag.open = None


class _Task:
    def __init__(self, **given: Any) -> None:
        self.given, self.before = given, list[_Task]()
        assert _Dag.open is not None
        _Dag.open.tasks.append(self)

    def __rshift__(self, other: _Task) -> _Task:
        other.before.append(self)
        return other


@pytest.fixture
def dags(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Dag]:
    made: list[_Dag] = []

    class Dag(_Dag):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            made.append(self)

    stubs: dict[str, dict[str, type]] = {
        "airflow": {},
        "airflow.sdk": {"DAG": Dag},
        "airflow.providers": {},
        "airflow.providers.standard": {},
        "airflow.providers.standard.operators": {},
        "airflow.providers.standard.operators.bash": {"BashOperator": _Task},
    }
    for name, classes in stubs.items():
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)
    runpy.run_path(str(EXAMPLES / "airflow/l0gc_dag.py"))
    return {d.given["dag_id"]: d for d in made}


def test_the_dags_run_commands_that_l0gc_takes_one_after_the_other(dags: dict[str, _Dag]) -> None:
    commands = {name: [parse(t.given["bash_command"])[0] for t in dag.tasks] for name, dag in dags.items()}
    assert commands.pop("l0gc") == ["housekeep", "reconcile", "compute-watermark", "sweep"]
    assert commands == {"l0gc_hourly": ["merge", "expire", "vacuum"], "l0gc_verify": ["verify"]}
    for dag in dags.values():
        assert [t.before for t in dag.tasks] == [[], *([t] for t in dag.tasks[:-1])]
        assert dag.given["catchup"] is False
        assert dag.given["max_active_runs"] == 1


# -- frequencies --------------------------------------------------------------------------------------------------------

TEN_MINUTES = "*/10 * * * *"
SCHEDULE = (EXAMPLES.parent / "docs/work/operate-schedule.md").read_text()


def _period(line: str) -> str:
    """Return how often a line of a crontab runs, in the wording of operate-schedule.md."""
    minute, hour = line.split()[:2]
    if found := re.fullmatch(r"(?:\*|\d+-59)/(\d+)", minute):
        return f"every {found[1]} minutes"
    return "hourly" if hour == "*" else "daily"


def test_every_schedule_runs_gc_once_per_tick(dags: dict[str, _Dag]) -> None:
    """With fewer ticks, M would follow later than the documents promise; with more, most runs would find nothing due."""
    (cron,) = [line.split()[:5] for line in CRON_LINES if " job gc " in line]
    said = re.search(r"^\| `l0gc gc` \| every (\d+) minutes \|", SCHEDULE, re.MULTILINE)
    assert said is not None
    periods = {
        "crontab": " ".join(cron),
        "systemd": _directives((EXAMPLES / "systemd/l0gc-gc.timer").read_text())["OnCalendar"],
        "Kubernetes": CRON_JOBS["l0gc-gc"]["schedule"],
        "Airflow": dags["l0gc"].given["schedule"],
        "operate-schedule.md": f"*/{said[1]} * * * *",
        "the epoch interval": f"*/{int(EPOCH_INTERVAL_S) // 60} * * * *",
    }
    assert periods == {**dict.fromkeys(periods, TEN_MINUTES), "systemd": "*:0/10"}
    for text in ("systemd/l0gc-gc.timer", "kubernetes/README.md"):
        assert "every ten minutes" in (EXAMPLES / text).read_text()


def test_a_schedule_of_separate_jobs_leaves_no_step_out(dags: dict[str, _Dag]) -> None:
    """Without merge, expire and vacuum, L1 grows forever. A table is created by hand, and so is its sync."""
    steps = {*STEPS, "verify"} - {"table-sync"}
    separate = (EXAMPLES / "cron/separate.crontab").read_text()
    assert {parse(f"l0gc {job}")[0] for job in re.findall(r"l0gc job (.+)", separate)} == steps
    assert {parse(t.given["bash_command"])[0] for dag in dags.values() for t in dag.tasks} == steps


def test_a_job_for_each_step_runs_as_often_as_its_page_says() -> None:
    for line in CRON_LINES:
        assert f"| `l0gc {line.split()[7]}` | {_period(line)}" in SCHEDULE


# -- containers ---------------------------------------------------------------------------------------------------------


def test_the_image_runs_l0gc_as_an_unprivileged_user_with_java() -> None:
    root = EXAMPLES.parent
    steps = (root / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    assert any("default-jre-headless" in s for s in steps)
    for step in steps:
        if step.startswith("COPY"):
            assert all((root / source).exists() for source in step.split()[1:-1])
    assert [s for s in steps if s.startswith("USER")] == ["USER l0gc"]
    assert 'ENTRYPOINT ["l0gc"]' in steps


def test_the_compose_file_runs_commands_that_l0gc_takes() -> None:
    services = yaml.safe_load((EXAMPLES.parent / "docker-compose.yml").read_text())["services"]
    (script,) = services["l0gc"]["command"]
    assert [parse(part)[0] for part in script.split(" && ") if shlex.split(part)[0] == "l0gc"] == ["init"]
