"""Status: the channel between operator and runtime.

The coordinator applies `runtime`, and the operator everything else (server-side apply, two field managers). Each reads
the other's part. The server sets no default in it, because a default has no owner.
"""

from __future__ import annotations

from rljob_api.status.episodes import EnvironmentLoad, EnvironmentMetric, EpisodesReport, FailedAttempts
from rljob_api.status.evaluations import EvaluationPoint, EvaluationReport
from rljob_api.status.job import Accepted, Condition, ConditionStatus, Phase, RLJobStatus
from rljob_api.status.members import (
    CoordinatorStatus,
    EnvironmentStatus,
    MachineGroup,
    Member,
    Role,
    RolloutStatus,
)
from rljob_api.status.planner_memory import ElasticityHistory, ParallelismHistory, PreemptionHistory, RunnerPool
from rljob_api.status.replacements import AvoidedNode, BackOff, NotReadyNode, ReplacementPause, Replacements
from rljob_api.status.round_report import (
    LayoutForecast,
    LoanReport,
    LoanState,
    MachineForecast,
    RoundKind,
    RoundReport,
    RuleReward,
    SourceReport,
)
from rljob_api.status.runtime import (
    BestModelStatus,
    CheckpointStatus,
    Finished,
    FinishedOutcome,
    RelayTopology,
    RuntimeStatus,
    RuntimeTotals,
    StatusWarning,
    Suspect,
)
from rljob_api.status.switches import (
    LayoutSwitchesReport,
    LayoutSwitchReport,
    RecomputedResponses,
    SwitchesState,
)
from rljob_api.status.target import Target, TargetPhase, TargetTensorParallel

__all__ = [
    "Accepted",
    "AvoidedNode",
    "BackOff",
    "BestModelStatus",
    "CheckpointStatus",
    "Condition",
    "ConditionStatus",
    "CoordinatorStatus",
    "ElasticityHistory",
    "EnvironmentLoad",
    "EnvironmentMetric",
    "EnvironmentStatus",
    "EpisodesReport",
    "EvaluationPoint",
    "EvaluationReport",
    "FailedAttempts",
    "Finished",
    "FinishedOutcome",
    "LayoutForecast",
    "LayoutSwitchReport",
    "LayoutSwitchesReport",
    "LoanReport",
    "LoanState",
    "MachineForecast",
    "MachineGroup",
    "Member",
    "NotReadyNode",
    "ParallelismHistory",
    "Phase",
    "PreemptionHistory",
    "RLJobStatus",
    "RecomputedResponses",
    "RelayTopology",
    "ReplacementPause",
    "Replacements",
    "Role",
    "RolloutStatus",
    "RoundKind",
    "RoundReport",
    "RuleReward",
    "RunnerPool",
    "RuntimeStatus",
    "RuntimeTotals",
    "SourceReport",
    "StatusWarning",
    "Suspect",
    "SwitchesState",
    "Target",
    "TargetPhase",
    "TargetTensorParallel",
]
