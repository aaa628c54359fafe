"""Failures: what ends an episode that no policy is to blame for."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """The part of ours that failed. The values stand in reports."""

    ENVIRONMENT = "environment"
    TOOL_SERVER = "tool server"
    RUNNER = "runner"
    """The runner leaves and hands the attempt back. No harness states it."""


class Failed(Exception):
    """A failure of ours ends the attempt: it has no reward, and the coordinator tries the episode again."""

    def __init__(self, part: Part, detail: str) -> None:
        super().__init__(detail)
        self.part = part


class EpisodeOver(Exception):
    """The attempt has ended without this runner, so there is nothing to report."""


class GatewayAway(Exception):
    """The gateway did not answer for as long as the runner waits for it."""


class GatewayRefused(Exception):
    """The gateway refuses a request for good. The message says why."""


class ToolServerFailed(Exception):
    """A tool raises it when what it needs is gone: the attempt is aborted and tried again, and the model sees nothing.

    Any other exception of a tool is an answer to the model's arguments.
    """
