"""Protocols: what the coordinator says to its peers, and the errors that they may raise.

Production binds them to Ray actors, the simulator to simulated peers under virtual time. One contract suite tests both.
A backend holds no decision, timer or retry. Every command carries the coordinator's `term`; a peer that has seen a
higher one raises `StaleTerm`. A call raises nothing but `PeerGone` (the peer is dead; ask for a new one), `PeerTimeout`
(no answer in time; it may have acted) and `Refused` (the message says why).
"""

from __future__ import annotations

from rljob_runtime.perf_model.step_totals import StepTotals
from rljob_runtime.protocols.backend import Backend, ControlPlane, Job, MachinePeers
from rljob_runtime.protocols.errors import (
    FunctionFailed,
    PeerError,
    PeerGone,
    PeerTimeout,
    Refused,
    StaleTerm,
    VolumeFull,
    WrongVersion,
)
from rljob_runtime.protocols.fencing import TermFence, check_term
from rljob_runtime.protocols.gradient_worker import ComputeReport, ContributionReceipt, GradientWorker
from rljob_runtime.protocols.prompts import PromptRecord, PromptsNotUsable, PromptSource
from rljob_runtime.protocols.relay import Chain, Relay, RelayMember, RelayStatus
from rljob_runtime.protocols.replica import (
    Delta,
    EngineProfile,
    EngineStats,
    GenerateRequest,
    KeptEngines,
    KvExport,
    KvRefusal,
    KvSize,
    KvStats,
    LoadTiming,
    Mismatch,
    ProfileLimits,
    Replica,
    ReplicaReport,
)
from rljob_runtime.protocols.rewards import RewardFailed, Rewards, RewardsNotUsable, RewardsUnavailable
from rljob_runtime.protocols.trainer import ContributeReport, PublishReport, Trainer, TrainerState, TrainReport

__all__ = [
    "Backend",
    "Chain",
    "ComputeReport",
    "ContributeReport",
    "ContributionReceipt",
    "ControlPlane",
    "Delta",
    "EngineProfile",
    "EngineStats",
    "FunctionFailed",
    "GenerateRequest",
    "GradientWorker",
    "Job",
    "KeptEngines",
    "KvExport",
    "KvRefusal",
    "KvSize",
    "KvStats",
    "LoadTiming",
    "MachinePeers",
    "Mismatch",
    "PeerError",
    "PeerGone",
    "PeerTimeout",
    "ProfileLimits",
    "PromptRecord",
    "PromptSource",
    "PromptsNotUsable",
    "PublishReport",
    "Refused",
    "Relay",
    "RelayMember",
    "RelayStatus",
    "Replica",
    "ReplicaReport",
    "RewardFailed",
    "Rewards",
    "RewardsNotUsable",
    "RewardsUnavailable",
    "StaleTerm",
    "StepTotals",
    "TermFence",
    "TrainReport",
    "Trainer",
    "TrainerState",
    "VolumeFull",
    "WrongVersion",
    "check_term",
]
