"""Spec: what a user requests. `job` is the top; every part is re-exported here."""

from __future__ import annotations

from rljob_api.spec.accelerators import (
    Accelerator,
    AcceleratorKind,
)
from rljob_api.spec.algorithm import (
    AdvantageBaseline,
    Algorithm,
    AlgorithmKind,
    Clipping,
    DynamicSampling,
    ImportanceRatio,
    KLPlacement,
    LearningRateSchedule,
    LossAggregation,
    Overlong,
    ScheduleKind,
)
from rljob_api.spec.egress import (
    Egress,
    EgressCidr,
)
from rljob_api.spec.environments import (
    Environment,
    EnvironmentKind,
    EpisodeLimits,
    McpServer,
    OpenEnvServer,
    Tool,
    VerifiersEnvironment,
)
from rljob_api.spec.evaluation import (
    Evaluation,
    EvaluationSampling,
)
from rljob_api.spec.job import (
    Metadata,
    RLJob,
    RLJobSpec,
)
from rljob_api.spec.policies import (
    CleanPodPolicy,
    FailurePolicy,
    ForceDelete,
    Gang,
    NodeFailure,
    ReplacementBackOff,
    RunPolicy,
    Scheduling,
)
from rljob_api.spec.renderers import (
    ChatTemplateRenderer,
)
from rljob_api.spec.resources import (
    Checkpoint,
    Coordinator,
    EmptyDirCheckpoint,
    Engine,
    EngineOptions,
    Relay,
    Rollout,
    Samples,
    Trainer,
)
from rljob_api.spec.rewards import (
    Reward,
    RewardKind,
    RewardTimeout,
)
from rljob_api.spec.sampling import (
    Sampling,
)
from rljob_api.spec.template import (
    PodTemplate,
    TemplateMetadata,
)
from rljob_api.spec.training import (
    AdaptiveTensorParallel,
    DataSource,
    DataSpec,
    DType,
    ExperienceBuffer,
    HeldOut,
    Mode,
    ModelSpec,
    OnInvalidRecord,
    PromptDataset,
    PromptFile,
    Prompts,
    ReasoningGym,
    Repack,
    StreamTraining,
    SwitchState,
    TailBatching,
)

__all__ = [
    "Accelerator",
    "AcceleratorKind",
    "AdaptiveTensorParallel",
    "AdvantageBaseline",
    "Algorithm",
    "AlgorithmKind",
    "ChatTemplateRenderer",
    "Checkpoint",
    "CleanPodPolicy",
    "Clipping",
    "Coordinator",
    "DType",
    "DataSource",
    "DataSpec",
    "DynamicSampling",
    "Egress",
    "EgressCidr",
    "EmptyDirCheckpoint",
    "Engine",
    "EngineOptions",
    "Environment",
    "EnvironmentKind",
    "EpisodeLimits",
    "Evaluation",
    "EvaluationSampling",
    "ExperienceBuffer",
    "FailurePolicy",
    "ForceDelete",
    "Gang",
    "HeldOut",
    "ImportanceRatio",
    "KLPlacement",
    "LearningRateSchedule",
    "LossAggregation",
    "McpServer",
    "Metadata",
    "Mode",
    "ModelSpec",
    "NodeFailure",
    "OnInvalidRecord",
    "OpenEnvServer",
    "Overlong",
    "PodTemplate",
    "PromptDataset",
    "PromptFile",
    "Prompts",
    "RLJob",
    "RLJobSpec",
    "ReasoningGym",
    "Relay",
    "Repack",
    "ReplacementBackOff",
    "Reward",
    "RewardKind",
    "RewardTimeout",
    "Rollout",
    "RunPolicy",
    "Samples",
    "Sampling",
    "ScheduleKind",
    "Scheduling",
    "StreamTraining",
    "SwitchState",
    "TailBatching",
    "TemplateMetadata",
    "Tool",
    "Trainer",
    "VerifiersEnvironment",
]
