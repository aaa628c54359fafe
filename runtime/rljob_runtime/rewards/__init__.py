"""Rewards: what a response is worth, computed in processes of their own while rollouts go on."""

from rljob_runtime.rewards.errors import RewardsNotReady
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rewards.remote_client import Elsewhere, RewardsEnded
from rljob_runtime.rewards.rules import CannotSandbox, CodeRule, InvalidReward, JudgeRule, Rule, rules_of

__all__ = [
    "CannotSandbox",
    "CodeRule",
    "Elsewhere",
    "InvalidReward",
    "JudgeRule",
    "RewardPool",
    "RewardsEnded",
    "RewardsNotReady",
    "Rule",
    "rules_of",
]
