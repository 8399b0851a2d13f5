"""Causes each failure of the alerts' table on a real cluster; its rule must fire over the metrics that were written.
Over the metrics of a healthy cluster no rule fires.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from docs.programs.alerts import ALERTS, RULES
from l0gc.collect.deletion import Pause
from l0gc.keys import CONTROLLER_LOG, FORMAT, L1_DATA, PAUSED, journal_log
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.format import Format, encode_format
from tests.flows.test_loop import LAYOUT, l0_objects
from tests.support.cli import BIN, Ended, ended_here, founded, l0gc
from tests.support.outcomes import Outcome, Passing, Refusal, Request
from tests.support.promql import NAME, Scraped, fires, seconds
from tests.support.proxy import Proxy
from tests.support.reconcile import reconcile_but
from tests.support.tables import sql_catalog

pytestmark = pytest.mark.weed

RULE = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
DAY_S = 86_400
SCALED = {
    "L0gcLaggards": [("1e10", "1")],
    "L0gcPinKeepsMuch": [("1e10", "1")],
    "L0gcThrottled": [("0.3", "1e-6"), ("2h", "0m")],
    "L0gcUploadsTooSlow": [("1h", "0m")],
}
"""Numbers of rules that are smaller here: 10 GB of garbage, or hours of waiting, would take too long."""


class Scene:
    """A cluster with the topic `events`, and the metrics that its jobs have written for Prometheus so far."""

    def __init__(self, store: S3Store, folder: Path) -> None:
        self.store, self.folder, self.scraped = store, folder, Scraped()
        self.idle_s = 0
        founded(2)

    def job(self, *args: str, code: int = 0, endpoint: str = "") -> Ended:
        """Run a command with its own metrics file, and let Prometheus read it."""
        path = self.folder / f"{args[0]}.prom"
        environment = {"AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {}
        ended = ended_here(*args, "--metrics-file", str(path), environment=environment)
        assert ended.code == code, ended.stderr
        self.scraped.add(time.time(), path.read_text())
        return ended

    def gc(self, *args: str, code: int = 0, endpoint: str = "") -> Ended:
        return self.job("gc", "--housekeep-barrier", "--engine", "local", *args, code=code, endpoint=endpoint)

    def upload(self, partition: int = 0) -> None:
        assert ended_here("upload", "events", "-", "--partition", str(partition), stdin=b"a\nb\n").code == 0

    def later(self, days: int, *args: str, code: int = 0) -> None:
        """Run a job this many days later, by the store's clock."""
        with Proxy(os.environ["AWS_ENDPOINT_URL_S3"], clock_ahead_s=days * DAY_S) as proxy:
            self.job(*args, code=code, endpoint=proxy.endpoint_url)

    def firing(self) -> set[str]:
        """Return which alerts fire if nothing changes until each has lasted long enough."""
        return {name for name in RULE if self.fires(name)}

    def fires(self, name: str) -> list[dict[str, str]]:
        return fires(_scaled(name), self.scraped, self.due_s(name))

    def due_s(self, name: str) -> float:
        """Return when a rule fires whose condition holds from this moment on."""
        return self.scraped.last_s + self.idle_s + seconds(_scaled(name)["for"])

    def firing_by(self, at_s: float) -> set[str]:
        """Return which alerts fire by then if nothing changes."""
        return {name for name in RULE if self.due_s(name) <= at_s and self.fires(name)}


def _scaled(name: str) -> dict[str, str]:
    rule: dict[str, str] = RULE[name]
    for number, scaled in SCALED.get(name, []):
        key = "for" if rule["for"] == number else "expr"
        rule = rule | {key: rule[key].replace(number, scaled)}
    return rule


@pytest.fixture
def scene(store: S3Store, tmp_path: Path) -> Scene:
    return Scene(store, tmp_path)


# -- failures ------------------------------------------------------------------------------------------------------------


def lose_an_object(s: Scene) -> None:
    s.upload()
    s.store.delete([*l0_objects(s.store)])
    s.gc(code=3)


def set_a_log_back(s: Scene) -> None:
    s.upload()
    s.gc()
    s.store.delete([max(k for page in s.store.scan(f"{journal_log(0)}log/") for k in page.keys)])
    s.gc(code=4)


def damage_a_log(s: Scene) -> None:
    s.store.put(f"{journal_log(1)}log/{0:020}", b"nonsense")
    s.gc(code=3)


def write_a_key_from_the_future(s: Scene) -> None:
    s.store.put(LAYOUT.format(0, 4711, "5d224ad2-0a58-418f-afde-bc2fe7c35589"), b"")
    s.gc(code=4)


def lose_an_l1_object(s: Scene) -> None:
    s.upload()
    s.gc()
    s.store.delete([k for page in s.store.scan(L1_DATA) for k in page.keys][:1])
    s.job("verify", code=4)


def change_the_format(s: Scene) -> None:
    s.store.put(FORMAT, encode_format(Format(99, 99, 99)))
    s.gc(code=6)


def let_no_job_run(s: Scene) -> None:
    s.gc()
    s.idle_s = 7201


def let_no_daily_job_run(s: Scene) -> None:
    s.job("verify")
    s.idle_s = 50 * 3600 + 1


def end_at_a_limit(s: Scene) -> None:
    for _ in range(2):
        s.upload()
    s.gc("--no-sweep")
    s.job("sweep", "--max-objects", "1")


def fill_the_disk_of_the_log(s: Scene) -> None:
    """Run a job with its log on a disk of 1 MB, mounted for the job alone."""
    disk, path = s.folder / "log", s.folder / "gc.prom"
    disk.mkdir()
    job = f"{shlex.join(BIN)} gc --engine local --metrics-file {path} 2>> {disk}/l0gc.log >> {disk}/l0gc.log"
    mounted = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=1m l0gc {disk} && {job}"]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    subprocess.run(mounted, check=True, timeout=60)
    s.scraped.add(time.time(), path.read_text())


def let_reconcile_not_run(s: Scene) -> None:
    s.upload()
    for _ in range(14):
        assert ended_here("epoch", "advance").code == 0
    s.gc("--no-reconcile")


def leave_an_orphan(s: Scene) -> None:
    s.upload()
    s.gc()
    (key,) = [k for page in s.store.scan(L1_DATA) for k in page.keys]
    s.store.put(f"{key[:-44]}5d224ad2-0a58-418f-afde-bc2fe7c35589.parquet", s.store.get(key).body)
    s.job("verify")
    s.later(4, "verify", code=4)


def forget_a_pin(s: Scene) -> None:
    """Leave a pin for so long that alerts fire (issue 40.2): no step that computes M is due, but the metrics still
    follow.
    """
    s.gc()
    assert ended_here("pin", "create", "forgotten", "--ttl", "30d").code == 0
    for _ in range(12):
        assert ended_here("epoch", "advance").code == 0
    s.gc()


def forget_a_pause(s: Scene) -> None:
    """Leave a pause (issue 40.6): the run names the pause even if the sweep would find nothing."""
    s.gc()
    since_ms = s.store.now_ms() - 1000 * DAY_S - 1000
    s.store.put(PAUSED, msgspec.json.encode(Pause("disk audit", "ann@ops1", since_ms)))
    assert "sweeps are paused: disk audit (ann@ops1, since" in s.gc(code=4).stderr


def leave_garbage(s: Scene) -> None:
    s.upload()
    s.gc("--no-sweep")
    s.later(3, "status")


def let_a_partition_lag(s: Scene) -> None:
    cluster = ClusterHandles(s.store)
    for _ in range(3):
        for partition in (0, 1):
            s.upload(partition)
        assert not reconcile_but(cluster, {1}).errors
        assert ended_here("housekeep", "--barrier").code == 0
    s.gc("--no-reconcile")


def let_a_pin_keep(s: Scene) -> None:
    assert ended_here("pin", "create", "big", "--ttl", "30d").code == 0
    s.upload()
    s.gc()


def let_a_table_fall_behind(s: Scene) -> None:
    s.upload()
    s.gc()
    assert ended_here("table", "create", "events", "--catalog", "lake").code == 0
    s.job("status")


def give_records_up(s: Scene) -> None:
    s.upload()
    s.job("status")
    (key,) = l0_objects(s.store)
    s.store.delete([key])
    s.job("gc", "--housekeep-barrier", "--engine", "local", code=3)
    assert ended_here("give-up", "--object", key, "--yes").code == 0
    s.job("status")


def leave_dead_l1(s: Scene) -> None:
    s.upload()
    s.gc()
    assert ended_here("topic", "delete", "events", "--yes").code == 0
    s.gc()
    s.later(2, "status")


class Refusing(Passing):
    """Answers the deletions of L0 objects in this order; later ones pass."""

    def __init__(self, *answers: Outcome | Refusal) -> None:
        self.answers = list(answers)

    def decide(self, request: Request) -> Outcome | Refusal:
        deletes = request.operation in ("DeleteObjects", "DeleteObject")
        return self.answers.pop(0) if deletes and self.answers else Outcome.PASS


def sweep_refused(s: Scene, *options: str, answers: tuple[Outcome | Refusal, ...], code: int = 0) -> None:
    s.job("sweep")
    s.gc("--no-sweep")
    for n in range(8):
        s.store.put(LAYOUT.format(0, 0, f"5d224ad2-0a58-418f-afde-bc2fe7c3558{n}"), b"of no use")
    with Proxy(os.environ["AWS_ENDPOINT_URL_S3"], Refusing(*answers)) as proxy:
        s.job("sweep", *options, code=code, endpoint=proxy.endpoint_url)


def refuse_a_deletion(s: Scene) -> None:
    """Answer as a store without bulk deletes does, with a lock on one object."""
    sweep_refused(s, answers=(Refusal(405, "MethodNotAllowed"), Outcome.DENY), code=3)


def throttle(s: Scene) -> None:
    sweep_refused(s, "--max-rate", "8", answers=(Outcome.PASS, *[Outcome.SLOW_DOWN] * 2))


def write_a_foreign_key(s: Scene) -> None:
    s.upload()
    s.store.put("level_zero/data/README.txt", b"hello")
    s.gc()


class Overtaking(Passing):
    """Moves the journal's window past each upload's first object before the object is listed there."""

    def __init__(self, store: S3Store) -> None:
        self.cluster, self.done = ClusterHandles(store), False

    def decide(self, request: Request) -> Outcome:
        if not self.done and request.operation.startswith("PutObject") and "level_zero/" in request.key:
            self.done = True
            for _ in range(2):
                self.cluster.journal(0).advance(self.cluster.controller.advance())
        return Outcome.PASS


def upload_too_slowly(s: Scene) -> None:
    lines = s.folder / "lines"
    lines.write_text("a\nb\n")
    s.job("upload", "events", str(lines))
    with Proxy(os.environ["AWS_ENDPOINT_URL_S3"], Overtaking(s.store)) as proxy:
        s.job("upload", "events", str(lines), endpoint=proxy.endpoint_url)


MADE: dict[Callable[[Scene], None], tuple[str, ...]] = {
    lose_an_object: ("L0gcObjectLost", "L0gcFailing"),
    set_a_log_back: ("L0gcLogSetBack", "L0gcRefusedForSafety"),
    damage_a_log: ("L0gcLogUnreadable",),
    write_a_key_from_the_future: ("L0gcWatermarkRefused",),
    lose_an_l1_object: ("L0gcFindings",),
    change_the_format: ("L0gcStoreUnfit",),
    let_no_job_run: ("L0gcNoSuccess", "L0gcNotSeen"),
    let_no_daily_job_run: ("L0gcDailyJobOverdue",),
    end_at_a_limit: ("L0gcLimited",),
    fill_the_disk_of_the_log: ("L0gcLogDiskFull",),
    let_reconcile_not_run: ("L0gcMLags",),
    leave_an_orphan: ("L0gcWaste",),
    forget_a_pin: ("L0gcCauseLasts",),
    forget_a_pause: ("L0gcPaused",),
    leave_garbage: ("L0gcGarbageStays",),
    let_a_partition_lag: ("L0gcLaggards",),
    let_a_pin_keep: ("L0gcPinKeepsMuch",),
    let_a_table_fall_behind: ("L0gcTableBehind",),
    give_records_up: ("L0gcRecordsGivenUp",),
    leave_dead_l1: ("L0gcDeadL1",),
    refuse_a_deletion: ("L0gcObjectsNotDeleted",),
    write_a_foreign_key: ("L0gcForeignKeys",),
    throttle: ("L0gcThrottled",),
    upload_too_slowly: ("L0gcUploadsTooSlow",),
}
"""The alerts that each function causes."""
ALSO: dict[Callable[[Scene], None], set[str]] = {
    write_a_key_from_the_future: {"L0gcRefusedForSafety"},
    let_no_daily_job_run: {"L0gcNotSeen"},
    let_a_partition_lag: {"L0gcCauseLasts"},
    let_a_pin_keep: {"L0gcCauseLasts"},
}
"""Alerts that also fire by then: a step was refused, no job ran for two days, or no operator acted for 36 hours."""


def test_everything_that_can_go_wrong_is_made_to() -> None:
    assert sorted(name for names in MADE.values() for name in names) == sorted(a.name for a in ALERTS)


def test_nothing_fires_where_all_is_well(scene: Scene) -> None:
    for _ in range(2):
        scene.upload()
        for command in ("status", "verify", "gc"):
            scene.job(command)
    scene.gc()
    assert scene.firing() == set()


QUICK = (lose_an_object, set_a_log_back)


@pytest.mark.parametrize(
    "made",
    [pytest.param(made, id=made.__name__, marks=[] if made in QUICK else pytest.mark.thorough) for made in MADE],
)
def test_what_goes_wrong_fires_its_alert_and_no_other(
    scene: Scene, made: Callable[[Scene], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql_catalog(monkeypatch, tmp_path)
    made(scene)
    for name in MADE[made]:
        assert {labels["url"] for labels in scene.fires(name)} == {os.environ["L0GC_URL"]}, (name, scene.firing())
    assert scene.firing_by(max(map(scene.due_s, MADE[made]))) == {*MADE[made], *ALSO.get(made, ())}


@pytest.mark.thorough
def test_a_pause_is_neither_a_refusal_nor_a_failure(scene: Scene) -> None:
    scene.gc()
    scene.upload()
    assert ended_here("pause", "--why", "disk audit").code == 0
    scene.gc(code=4)
    assert scene.firing() == set()
    scene.idle_s = 3 * 3600
    assert scene.firing() == {"L0gcNotSeen"}
    scene.idle_s = 0
    assert ended_here("resume").code == 0
    scene.gc()
    assert scene.firing() == set()


def test_vanished_series_are_noticed(scene: Scene) -> None:
    """An alert fires if the machine died or lost its files."""
    for command in ("verify", "gc"):
        scene.job(command)
    scene.scraped.vanished_s = scene.scraped.last_s + 1
    scene.idle_s = 7201
    assert scene.firing() == {"L0gcNotSeen", "L0gcNoSuccess"}
    scene.idle_s = 50 * 3600 + 1
    assert scene.firing() == {"L0gcNotSeen", "L0gcNoSuccess", "L0gcDailyJobOverdue"}
    scene.idle_s = 30 * DAY_S
    assert scene.fires("L0gcNotSeen") == [{}]


def test_a_lost_object_pages_while_a_pin_holds_m(scene: Scene) -> None:
    assert ended_here("pin", "create", "backup", "--ttl", "1d").code == 0
    for _ in range(4):
        assert ended_here("epoch", "advance").code == 0
    lose_an_object(scene)
    assert scene.fires("L0gcObjectLost")
    assert l0gc("status")["held_back_by"][0]["kind"] == "pinned"


def test_a_verify_that_was_refused_pages(scene: Scene) -> None:
    scene.job("verify")
    assert ended_here("pause", "--why", "disk audit").code == 0
    scene.store.put(max(k for page in scene.store.scan(f"{CONTROLLER_LOG}log/") for k in page.keys), b"nonsense")
    scene.job("verify", code=4)
    assert {"L0gcRefusedForSafety"} <= scene.firing()
    assert not scene.fires("L0gcFindings")


@pytest.mark.thorough
def test_shadow_runs_leave_garbage_without_an_alert(scene: Scene) -> None:
    scene.upload()
    scene.gc("--shadow")
    scene.later(5, "status")
    assert not scene.fires("L0gcGarbageStays")
    status = l0gc("status")
    assert status["garbage"]["left_objects"] > 0
    assert status["next"].startswith("nothing to do: sweeps are shadow runs")
    assert b"sweep (shadow) " in ended_here("status").stdout
    scene.gc()
    assert l0gc("status")["garbage"]["left_objects"] == 0


def test_an_alert_ends_with_any_healthy_run(scene: Scene) -> None:
    scene.upload()
    (key,) = l0_objects(scene.store)
    body = scene.store.get(key).body
    scene.store.delete([key])
    scene.job("reconcile", "--engine", "local", code=3)
    scene.job("status")
    assert scene.fires("L0gcObjectLost")
    scene.store.put(key, body)
    scene.job("reconcile", "--engine", "local")
    assert not scene.fires("L0gcObjectLost")  # status.prom still has the series


# -- promtool ------------------------------------------------------------------------------------------------------------


AGREED = (lose_an_object, set_a_log_back, let_no_job_run, forget_a_pin, give_records_up)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("made", AGREED, ids=lambda made: made.__name__)
def test_promtool_agrees(scene: Scene, made: Callable[[Scene], None], tmp_path: Path) -> None:
    """Compare promtool's results for the scraped metrics: the scrapes are a minute apart, and the last one stays."""
    made(scene)
    times = sorted({at for samples in scene.scraped.series.values() for at, _ in samples})
    series, ended = [], Scraped()
    for labels, samples in scene.scraped.series.items():
        of = dict(labels)
        metric = of.pop(NAME)
        known = {at: value - times[0] if "timestamp_seconds" in metric else value for at, value in samples}
        values = ["_"]
        for at in times:
            values.append(repr(known[at]) if at in known else values[-1])
        minutes = 60 * 30 if values[-1] != "_" else 0
        text = ",".join(f'{k}="{v}"' for k, v in sorted(of.items()))
        series.append({"series": f"{metric}{{{text}}}", "values": " ".join([*values[:-1], f"{values[-1]}x{minutes}"])})
        ended.series[labels] = [(60.0 * (1 + times.index(at)), known[at]) for at, _ in samples]
    cases = []
    for name in MADE[made]:
        rule = RULE[name]
        minute = len(times) + (scene.idle_s + seconds(rule["for"])) // 60 + 1
        cases.append({"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [
            {"exp_labels": labels | rule["labels"], "exp_annotations": _filled(rule["annotations"], labels)}
            for labels in fires(rule, ended, 60.0 * minute)
        ]})  # fmt: skip
        assert cases[-1]["exp_alerts"]
    path = tmp_path / "tests.yml"
    test = {"interval": "1m", "input_series": series, "alert_rule_test": cases}
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _filled(annotations: dict[str, str], labels: dict[str, str]) -> dict[str, str]:
    def text(template: str) -> str:
        for name, value in labels.items():
            template = template.replace(f"{{{{ $labels.{name} }}}}", value)
        return template

    return {name: text(template) for name, template in annotations.items()}
