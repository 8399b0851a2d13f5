"""The public types of the library's arguments and results: each is `l0gc.api.NAME`.

This is a separate module because these imports load most of l0gc; `l0gc.api` imports it when a type is first used.
"""

# ruff: noqa: PLC0414 - the alias marks the name as public in this module

from l0gc.collect.deletion import NewPause as NewPause
from l0gc.collect.deletion import Pause as Pause
from l0gc.collect.history import KeyInRun as KeyInRun
from l0gc.collect.history import RunDetail as RunDetail
from l0gc.collect.history import RunList as RunList
from l0gc.collect.history import UndeleteResult as UndeleteResult
from l0gc.collect.sweep import SweepResult as SweepResult
from l0gc.collect.vacuum import VacuumResult as VacuumResult
from l0gc.inspect.doctor import DoctorResult as DoctorResult
from l0gc.inspect.explain import Explanation as Explanation
from l0gc.inspect.lag import QueryLag as QueryLag
from l0gc.inspect.lag import QueryPosition as QueryPosition
from l0gc.inspect.overview import Overview as Overview
from l0gc.inspect.report.facts import Report as Report
from l0gc.inspect.verify.findings import VerifyResult as VerifyResult
from l0gc.operations import ComputeWatermark as ComputeWatermark
from l0gc.operations import Expire as Expire
from l0gc.operations import Housekeep as Housekeep
from l0gc.operations import Merge as Merge
from l0gc.operations import Reconcile as Reconcile
from l0gc.operations import Sweep as Sweep
from l0gc.operations import TableSync as TableSync
from l0gc.operations import Vacuum as Vacuum
from l0gc.spark.frames import ExternalFrames as ExternalFrames
from l0gc.streamlog.controller.state import Topic as Topic
from l0gc.streamlog.follow import Follower as Follower
from l0gc.streamlog.founding import FoundedCluster as FoundedCluster
from l0gc.streamlog.housekeep import HousekeepResult as HousekeepResult
from l0gc.streamlog.ingest.headers_and_times import Record as Record
from l0gc.streamlog.ingest.inputs import Source as Source
from l0gc.streamlog.ingest.result import UploadResult as UploadResult
from l0gc.streamlog.ingest.sender import Sender as Sender
from l0gc.streamlog.journal.topic import Hole as Hole
from l0gc.streamlog.level_one.expire import ExpireResult as ExpireResult
from l0gc.streamlog.level_one.give_up import GiveUpResult as GiveUpResult
from l0gc.streamlog.level_one.merge import MergeResult as MergeResult
from l0gc.streamlog.level_one.reconcile import ReconcileResult as ReconcileResult
from l0gc.streamlog.pins import PinList as PinList
from l0gc.streamlog.pins import PinView as PinView
from l0gc.streamlog.producers import ProducerList as ProducerList
from l0gc.streamlog.producers import ProducerView as ProducerView
from l0gc.streamlog.reader import RecordLines as RecordLines
from l0gc.streamlog.tables import TableList as TableList
from l0gc.streamlog.tables import TableSynced as TableSynced
from l0gc.streamlog.tables import TableSyncResult as TableSyncResult
from l0gc.streamlog.tables import TableView as TableView
from l0gc.streamlog.topics import AdvancedEpoch as AdvancedEpoch
from l0gc.streamlog.topics import AlteredDefaults as AlteredDefaults
from l0gc.streamlog.topics import AlteredTopic as AlteredTopic
from l0gc.streamlog.topics import CreatedTopic as CreatedTopic
from l0gc.streamlog.topics import InferredSchema as InferredSchema
from l0gc.streamlog.topics import RemovedTopic as RemovedTopic
from l0gc.streamlog.topics import TopicDescription as TopicDescription
from l0gc.streamlog.topics import TopicList as TopicList
from l0gc.watermark.external_files import ExternalFiles as ExternalFiles
from l0gc.watermark.external_log import ExternalEpochs as ExternalEpochs
from l0gc.watermark.pipeline import WatermarkResult as WatermarkResult
