"""Rewards: scores responses in separate processes while rollouts continue."""

from rljob_runtime.rewards.errors import RewardsNotReady
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rewards.remote_client import RewardsEnded, RewardServerClient
from rljob_runtime.rewards.rules import (
    CannotSandbox,
    CodeRule,
    InvalidReward,
    JudgeRule,
    Rule,
    rules_of,
    rules_of_sources,
)

__all__ = [
    "CannotSandbox",
    "CodeRule",
    "InvalidReward",
    "JudgeRule",
    "RewardPool",
    "RewardServerClient",
    "RewardsEnded",
    "RewardsNotReady",
    "Rule",
    "rules_of",
    "rules_of_sources",
]
