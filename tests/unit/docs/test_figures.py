"""Limits, times and defaults that pages print are those of the code."""

from __future__ import annotations

import ast
import resource
from typing import Any

import pytest

from hack.loop import __main__ as loop
from hack.loop import suites
from rljob_api.constants import MAX_JOB_NAME_LENGTH
from rljob_api.errors import MOST_ERRORS
from rljob_api.spec.policies import ReplacementBackOff
from rljob_api.spec.resources import Relay, Store
from rljob_api.spec.rewards import DEFAULT_PARALLELISM, RewardRange, RewardTimeout
from rljob_api.spec.training import Repack, TailBatching
from rljob_api.status import Role
from rljob_operator import app, workqueue
from rljob_operator.__main__ import parser
from rljob_operator.health import Limits
from rljob_operator.policies import refusal
from rljob_operator.policies.base import periods
from rljob_operator.policies.failure import losses, mass_failure_hold, nodes
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.lifecycle import eviction
from rljob_operator.policies.pods import devices
from rljob_operator.policies.scaling import autoscaler, parallelism_planner
from rljob_operator.policies.status import seal
from rljob_runtime.coordinator.control_plane import lease
from rljob_runtime.coordinator.core import settings
from rljob_runtime.coordinator.store import connection, opening, store
from rljob_runtime.data import prompt_cache
from rljob_runtime.entrypoints import ray_node
from rljob_runtime.protocols.remote import CallTimeouts
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.rewards import code_scorer, function_scorer, remote_client
from rljob_runtime.sandbox import confine_child, confine_self, supervisor
from rljob_runtime.scheduling import backoff, reward_timeout, status_cadence
from rljob_runtime.scheduling.asynchronous import experience_buffer
from rljob_runtime.scheduling.fault_detection import logprob_agreement, suspicion, write_latency
from rljob_runtime.scheduling.lending import contributions, policy
from rljob_runtime.scheduling.round_planner import planner, round_history
from rljob_runtime.simulator.drawn_scenario import MOST_MACHINES, MOST_TRAJECTORIES
from tests.support.docs import joined, page
from tests.support.paths import ROOT

WORDS = {2: "two", 4: "four", 5: "five", 10: "ten", 16: "sixteen", 30: "thirty"}


def _written(package: str, name: str) -> Any:
    """A constant of a module that takes seconds to import."""
    found = [
        ast.literal_eval(node.value)
        for path in (ROOT / "runtime/rljob_runtime" / package).rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    ]
    [value] = found
    return value


def _percent(share: float) -> str:
    return f"{round(share * 100, 6):g} %"


KEPT = settings.Settings.__dataclass_fields__
LEASE_SECONDS = parser({}).get_default("coordinator_lease_seconds")
BACK_OFF = ReplacementBackOff()
PATIENCE = refusal.PATIENCE_SECONDS
LIMITS, TIMEOUT, BOUNDS = Limits(), RewardTimeout(), CallTimeouts()
RELAY = RelaySettings()

FIGURES = [
    ("api.md", f"at most {MAX_JOB_NAME_LENGTH} characters"),
    ("api.md", f"up to {MOST_ERRORS} mistakes"),
    ("operator.md", f"older than {LIMITS.queue:g} s, no resync for {LIMITS.resync:g} s"),
    ("operator.md", f"that the watch has owed for {LIMITS.watch:g} s"),
    ("operator.md", f"more than {parallelism_planner.SURGE} × the round before"),
    ("operator.md", f"none in {WORDS[parallelism_planner.QUIET_ROUNDS]} rounds"),
    ("operator.md", f"asked for again {parallelism_planner.REFUSED_ROUNDS} rounds later"),
    ("operator.md", f"gives its rollout machines back after {PATIENCE[Role.ROLLOUT]:g} s"),
    ("operator.md", f"and its trainer after {PATIENCE[Role.TRAINER]:g} s"),
    ("operator.md", f"tried again every {periods.REFUSED_AGAIN_SECONDS:g} s"),
    ("operator.md", f"the operator looks every {devices.RECHECK_SECONDS:g} s"),
    ("operator.md", f"it is looked for every {pod_groups.RECHECK_SECONDS:g} s"),
    ("operator.md", f"at most {1.5 * workqueue.Backoff().cap:g} s apart"),
    ("operator.md", f"lists the Leases every {int(LEASE_SECONDS) / 3:g} s"),
    ("operator.md", f"renews its own every {app.Options().leader_lease_seconds * 2 / 15:g} s"),
    ("operator.md", f"{eviction.END_SECONDS} s, as `terminationGracePeriodSeconds`"),
    ("operator.md", f"a step back rests on {WORDS[autoscaler.TURN]} rounds, others on {WORDS[autoscaler.UPDATES]}"),
    ("operator.md", f"is above {logprob_agreement.LARGEST_MISMATCH} a token"),
    ("install.md", "for an hour" if seal.REPORTED_SECONDS == 3600 else f"for {seal.REPORTED_SECONDS:g} s"),
    (
        "troubleshooting.md",
        f"then after {', '.join(f'{BACK_OFF.initial_seconds * 2**n:g}' for n in range(3))} … seconds",
    ),
    ("troubleshooting.md", f"runs out within {app.Options().leader_lease_seconds:g} s"),
    ("runtime.md", f"more than {WORDS[backoff.MAX_TRAINER_LOSSES]} losses of the trainer"),
    ("runtime.md", f"as long as the Lease lasts ({lease.DURATION:g} s)"),
    ("runtime.md", f"waits for more than {WORDS[int(write_latency.LATE_SECONDS)]} seconds"),
    ("runtime.md", f"at most every {WORDS[int(KEPT['rewards_back_off'].default_factory().maximum / 60)]} minutes"),
    (
        "runtime.md",
        f"{planner.FIRST_ROUNDS} with {planner.FIRST_RESPONSES} responses, or {planner.MOST_FIRST_ROUNDS} smaller",
    ),
    ("runtime.md", f"`promptFactor` (1 to 4; {TailBatching().prompt_factor})"),
    ("runtime.md", f"(`spec.store.keepRounds`, {Store().keep_rounds:,})"),
    ("weight-relay.md", f"`spec.relay.chunkBytes` ({Relay().chunk_bytes >> 20}Mi)"),
    ("weight-relay.md", f"`spec.relay.heartbeatSeconds` ({Relay().heartbeat_seconds})"),
    ("weight-relay.md", f"`spec.relay.rebuildTimeoutSeconds` ({Relay().rebuild_timeout_seconds:g})"),
    ("weight-relay.md", f"is incomplete after {_written('relay', 'MAX_ROUNDS')} rounds"),
    (
        "data-and-rewards.md",
        f"at most {prompt_cache.MOST_BYTES >> 20} MiB of tokens ({prompt_cache.TOKEN_BYTES} bytes each)",
    ),
    ("data-and-rewards.md", f"({confine_child.FOLDER_BYTES >> 20} MiB, {supervisor.MAX_FILES:,} files)"),
    ("data-and-rewards.md", f"{supervisor.MAX_THREADS} threads"),
    ("data-and-rewards.md", f"{confine_self.LIMITS[resource.RLIMIT_AS] >> 30} GiB of address space"),
    ("data-and-rewards.md", f"({DEFAULT_PARALLELISM} unless set, at most 256)"),
    ("data-and-rewards.md", f"-1e6 to {RewardRange().max:.0e} unless".replace("e+0", "e")),
    ("data-and-rewards.md", f"wall clock may be {'twice' if reward_timeout.WALL_FACTOR == 2 else 'other than'} that"),
    ("training.md", f"differ by more than {_written('training', 'LIMIT'):.0e}".replace("e-0", "e-")),
    (
        "simulate.md",
        f"(at most {MOST_MACHINES} machines, {MOST_TRAJECTORIES} trajectories trained on)",
    ),
    ("development.md", f"goal {loop.CHECK_SECONDS:g} s"),
    (
        "development.md",
        f"at least {suites.LEAST_SEEDS} of each mode, and more until {suites.SECONDS['OnPolicy']} s a mode",
    ),
    ("development.md", f"{suites.ALL_SEEDS:,} seeds a mode"),
    ("failure.md", f"has computed no token for {KEPT['stall'].default:g} s hangs"),
    ("failure.md", f"does not answer a poll within {BOUNDS.poll:g} s"),
    ("failure.md", "twice the poll's" if BOUNDS.command == 2 * BOUNDS.poll else "the command's own bound is"),
    ("failure.md", f"has not renewed its Lease for {periods.SILENT_SECONDS:g} s"),
    ("failure.md", f"the newest {nodes.MOST_AVOIDED} at most"),
    (
        "failure.md",
        f"for {WORDS[int(mass_failure_hold.GRACES)]} graces ({mass_failure_hold.SHORTEST_SECONDS:g} s at least)",
    ),
    ("failure.md", f"a grace apart ({mass_failure_hold.STEP_SECONDS:g} s at least)"),
    ("failure.md", f"in the last {mass_failure_hold.WINDOW_SECONDS:g} s"),
    ("failure.md", f"{WORDS[int(suspicion.TIMES_SLOWEST)]} times the slowest of the last twenty answers"),
    ("failure.md", "ready after a minute" if losses.SETTLED_SECONDS == 60 else "ready after"),
    ("autoscaler.md", f"waited for more than {_percent(autoscaler.STARVING)}"),
    ("autoscaler.md", f"stood still for more than {_percent(autoscaler.FLOODING)}"),
    ("autoscaler.md", f"can do what all did and {_percent(autoscaler.SPARE - 1)} more"),
    ("parallelism-planner.md", f"fewer than {parallelism_planner.RELIEF} of the tokens"),
    ("parallelism-planner.md", f"to take {_percent(1 - parallelism_planner.CLEARLY)} less"),
    ("parallelism-planner.md", f"to take {_percent(parallelism_planner.SLIGHT)} less"),
    (
        "reward-timeout.md",
        f"Tmin = {TIMEOUT.min_seconds:g} s, λ = {TIMEOUT.factor}, Tmax = {TIMEOUT.max_seconds:g} s",
    ),
    ("reward-timeout.md", f"selects {_percent(reward_timeout.SHADOW_SHARE)} of the runs"),
    ("reward-timeout.md", f"{code_scorer.MOST_SHADOWS} at most wait"),
    ("reward-scoring.md", f"more than {_percent(function_scorer.FULL)} of its space"),
    (
        "reward-scoring.md",
        "A connection is tried for a minute" if remote_client.CONNECT_SECONDS == 60 else "is tried for",
    ),
    (
        "round-planner.md",
        f"Lengths of the last {round_history.WINDOW} rounds, and of up to {round_history.WHOLE_ROUNDS} older ones",
    ),
    ("round-planner.md", f"({round_history.REACH} rounds back at most)"),
    ("round-planner.md", f"the mean over the next {planner.HORIZON} rounds"),
    (
        "round-planner.md",
        f"at most {planner.MOST_EVENTS:,} events of the performance model, {planner.PILOT_EVENTS:,} of them",
    ),
    ("round-planner.md", f"for a predicted gain of {_percent(planner.LEAVE)}"),
    ("round-planner.md", f"over the one in force for {_percent(planner.SWITCH)}"),
    ("round-planner.md", f"is returned to below {_percent(planner.RETURN)}"),
    ("round-planner.md", f"that took {planner.SURPRISE} times what was predicted"),
    ("experience-buffer.md", f"(more than {_percent(experience_buffer.STARVED)} of the time)"),
    ("experience-buffer.md", f"more than {_percent(experience_buffer.FULL)} of what its KV cache"),
    ("status-and-events.md", f"{WORDS[int(status_cadence.CHANGE_SECONDS)]} seconds after the last report"),
    ("status-and-events.md", f"mere progress after {WORDS[int(status_cadence.PROGRESS_SECONDS)]}"),
    ("store.md", f"the page cache is {connection.CACHE_KIB >> 10} MB"),
    ("store.md", f"once {store.TIDY_ROWS:,} rows were written or it had {store.TIDY_TURNS} turns"),
    ("store.md", f"`store.keepRounds`, {Store().keep_rounds:,}"),
    ("store.md", f"longer than {WORDS[int(opening.LONG_SECONDS)]} seconds is reported"),
    ("stream-training.md", f"{settings.STREAM_TOKENS:,}, or what takes {contributions.CALL_SECONDS:g} s"),
    ("stream-training.md", f"looked at every {_percent(policy.LoanRules().look_every)}"),
    ("engine-layouts.md", f"have {_written('rollout', 'GRACE_SECONDS'):g} s to answer"),
    ("ray-head.md", f"({ray_node.HEAD_ABSENCE_SECONDS} s; the default ends raylets"),
    ("relay-chain.md", f"after max({RELAY.silence_seconds:g} s, 4 heartbeats)"),
    (
        "bench-repack.md",
        f"every {Repack().interval_seconds:g} s, threshold {Repack().kv_cache_threshold}, at most {Repack().max_batch}",
    ),
]


@pytest.mark.parametrize(("name", "printed"), FIGURES, ids=[f"{name}: {printed}" for name, printed in FIGURES])
def test_a_figure_is_the_codes(name: str, printed: str) -> None:
    assert printed in joined(page(name))
