"""What a model is: its row, files and plan, and the leases by which machines share the work."""

from __future__ import annotations

from edgeloop.models.candidates import Candidates
from edgeloop.models.catalog import Catalog, Model, Uploaded
from edgeloop.models.csv_file import read_csv, write_csv
from edgeloop.models.files import (
    ATTEMPTS_FOLDER,
    Leftovers,
    ModelFile,
    ModelFiles,
    check_upload,
    is_copy,
)
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.names import check_experiment_name, check_model_name, matches, matches_any
from edgeloop.models.plan import LATENCY_COLUMNS, Plan, Stage, default_plan
from edgeloop.models.queue import (
    FINISHED,
    Queue,
    capability_of,
    free_at,
    is_claimable,
    plain_key,
    ready_at,
)
from edgeloop.models.records import UPLOAD, StageRecord, holders_of, is_foreign, is_on, records_of
from edgeloop.models.row import (
    AGREEMENT_COLUMNS,
    CANDIDATE,
    COLUMNS,
    LARGEST_PRIORITY,
    SCORE_COLUMNS,
    check_priority,
    decoded,
    is_true,
    mean_latency_ms,
    ran_on,
    runs_of,
    score_headings,
    shared_metric,
    shown_scores,
    visible_columns,
)
from edgeloop.models.runners import (
    BEAT_S,
    DEAD_S,
    CurrentStage,
    DeviceState,
    Registry,
    RunnerDevice,
    RunnerEntry,
    new_runner_id,
)
from edgeloop.models.upload import UploadOptions

__all__ = [
    "AGREEMENT_COLUMNS",
    "ATTEMPTS_FOLDER",
    "BEAT_S",
    "CANDIDATE",
    "COLUMNS",
    "DEAD_S",
    "FINISHED",
    "LARGEST_PRIORITY",
    "LATENCY_COLUMNS",
    "SCORE_COLUMNS",
    "UPLOAD",
    "Candidates",
    "Catalog",
    "CurrentStage",
    "DeviceState",
    "Lease",
    "Leases",
    "Leftovers",
    "Model",
    "ModelFile",
    "ModelFiles",
    "Outcome",
    "Plan",
    "Queue",
    "Registry",
    "RunnerDevice",
    "RunnerEntry",
    "Stage",
    "StageRecord",
    "UploadOptions",
    "Uploaded",
    "capability_of",
    "check_experiment_name",
    "check_model_name",
    "check_priority",
    "check_upload",
    "decoded",
    "default_plan",
    "free_at",
    "holders_of",
    "is_claimable",
    "is_copy",
    "is_foreign",
    "is_on",
    "is_true",
    "matches",
    "matches_any",
    "mean_latency_ms",
    "new_runner_id",
    "plain_key",
    "ran_on",
    "read_csv",
    "ready_at",
    "records_of",
    "runs_of",
    "score_headings",
    "shared_metric",
    "shown_scores",
    "visible_columns",
    "write_csv",
]
