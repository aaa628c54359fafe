"""Mutants of what the gateway takes from foreign programs and models, and how much of it."""

from __future__ import annotations

from hack.mutants import Mutant

ENVIRONMENTS = "tests/unit/gateway/test_environment_routes.py"
HISTORIES = "tests/unit/gateway/test_histories.py"
MEMORY = "tests/unit/gateway/test_memory.py"
REPEATS = "tests/unit/gateway/wire/test_repeats.py"
TOO_LONG = f"{ENVIRONMENTS}::test_an_attempt_that_ends_with_too_long_a_request_was_ended_by_tokens"

MUTANTS = (
    Mutant(
        name="a gateway is told the bounds of a small job",
        target="rljob_runtime.gateway.config:GatewayConfig.of",
        before="bounds_of(job.spec)",
        after="GatewayBounds()",
        tests=(
            "tests/unit/entrypoints/test_pod_gateway.py::test_the_container_finds_its_config_the_text_and_the_link",
        ),
    ),
    Mutant(
        name="a conversation is closed before a long reward reads it",
        target="rljob_runtime.gateway.config:GatewayConfig.of",
        before="max((one.overtime_seconds for one in job.spec.environments), default=0.0)",
        after="30.0",
        tests=(
            "tests/unit/entrypoints/test_pod_gateway.py::test_the_container_finds_its_config_the_text_and_the_link",
        ),
    ),
    Mutant(
        name="each request reads the turns of its attempt",
        target="rljob_runtime.gateway.histories:Histories.of",
        before="(reading := self._readings.get(episode)) is None",
        after="True",
        tests=(f"{HISTORIES}::test_requests_of_an_attempt_wait_for_one_read_of_its_turns",),
    ),
    Mutant(
        name="what cannot be carried on is a reply",
        target="rljob_runtime.gateway.gateway:Gateway._reply",
        before="canonical(asdict(reply))",
        after="",
        tests=("tests/unit/gateway/test_gateway.py::test_a_reply_that_no_message_can_carry_says_nothing",),
    ),
    Mutant(
        name="the turns of any number of attempts are kept",
        target="rljob_runtime.gateway.paths:AttemptPaths.measure",
        before="self.held > self._most",
        after="False",
        tests=(f"{HISTORIES}::test_paths_never_take_more_than_their_bytes",),
    ),
    Mutant(
        name="an attempt is as large as when it was read",
        target="rljob_runtime.gateway.gateway:Gateway._chat",
        before="self.histories.measure(capability.episode)",
        after="pass",
        tests=(f"{HISTORIES}::test_an_attempt_that_grows_drops_another",),
    ),
    Mutant(
        name="the newest attempt is dropped first",
        target="rljob_runtime.gateway.paths:AttemptPaths.get",
        before="self._paths.move_to_end(episode)",
        after="pass",
        tests=(f"{HISTORIES}::test_the_oldest_attempts_are_dropped_first",),
    ),
    Mutant(
        name="a turn that was answered during a read is lost",
        target="rljob_runtime.gateway.histories:Histories._reading",
        before="episode not in self._outdated",
        after="True",
        tests=(f"{HISTORIES}::test_a_turn_that_is_answered_while_its_attempt_is_read_is_not_lost",),
    ),
    Mutant(
        name="the turns of a reported attempt stay",
        target="rljob_runtime.gateway.environment_routes:AgentSide.forget",
        before="self.histories.forget(episode)",
        after="pass",
        tests=(f"{ENVIRONMENTS}::test_nothing_is_kept_of_an_attempt_that_was_reported",),
    ),
    Mutant(
        name="the requests of a reported attempt stay",
        target="rljob_runtime.gateway.environment_routes:AgentSide.forget",
        before="self.repeats.forget(episode)",
        after="pass",
        tests=(f"{ENVIRONMENTS}::test_nothing_is_kept_of_an_attempt_that_was_reported",),
    ),
    Mutant(
        name="the requests of an attempt that has ended stay",
        target="rljob_runtime.gateway.gateway:Gateway._asked",
        before="self.repeats.forget(capability.episode)",
        after="pass",
        tests=(f"{REPEATS}::test_an_attempt_that_has_ended_is_forgotten",),
    ),
    Mutant(
        name="a small job's gateway remembers as many requests as a large one's",
        target="rljob_runtime.gateway.gateway:Gateway.__init__",
        before="Repeats(settings.remembered)",
        after="Repeats()",
        tests=(f"{REPEATS}::test_a_gateway_remembers_as_many_as_its_settings_say",),
    ),
    Mutant(
        name="equal requests have one answer when the coordinator was away",
        target="rljob_runtime.gateway.gateway:Gateway._turn",
        before="replace(own, retry=True)",
        after="replace(call, retry=True)",
        tests=(f"{REPEATS}::test_clients_have_their_own_answers_when_the_coordinator_was_away",),
    ),
    Mutant(
        name="an attempt that was refused is scored",
        target="rljob_runtime.gateway.environment_routes:AgentSide.true_report",
        before="self.memory.why_unserved(episode)",
        after="None",
        tests=(f"{ENVIRONMENTS}::test_the_end_of_an_attempt_that_was_refused_is_a_failure_of_ours",),
    ),
    Mutant(
        name="an attempt that its context ended has completed",
        target="rljob_runtime.gateway.environment_routes:AgentSide.true_report",
        before="self.context_limit.has_ended(episode)",
        after="False",
        tests=(TOO_LONG,),
    ),
    Mutant(
        name="an attempt that shortened its messages was ended by its context",
        target="rljob_runtime.gateway.gateway:Gateway._bounds",
        before="self.context_limit.forget(episode)",
        after="pass",
        tests=(TOO_LONG,),
    ),
    Mutant(
        name="a request that was refused because of others is its agent's doing",
        target="rljob_runtime.gateway.memory:Memory._full",
        before="self._not_served(owner, amount, sender)",
        after="pass",
        tests=(f"{MEMORY}::test_more_requests_than_may_wait_are_refused_because_of_all",),
    ),
    Mutant(
        name="a request that waits at its attempt's end was served",
        target="rljob_runtime.gateway.memory:Memory.why_unserved",
        before="lost + sum(self._unserved.get(owner, {}).values())",
        after="sum(self._unserved.get(owner, {}).values())",
        tests=(f"{MEMORY}::test_a_request_beyond_the_places_of_all_waits_and_is_answered",),
    ),
    Mutant(
        name="a client that gave up in the queue was served",
        target="rljob_runtime.gateway.memory:Memory.room",
        before="wait is not None and sender is not None and claim.granted and wait.is_lost(claim)",
        after="False",
        tests=(f"{MEMORY}::test_a_client_that_leaves_while_it_waits_had_no_place",),
    ),
    Mutant(
        name="a client that leaves with half a body is a failure of the gateway",
        target="rljob_runtime.gateway.http:read_body",
        before="ConnectionError",
        after="KeyError",
        tests=(f"{MEMORY}::test_a_client_that_leaves_with_half_a_body_is_no_failure",),
    ),
    Mutant(
        name="any request stands for a refused one",
        target="rljob_runtime.gateway.memory:Memory.answer",
        before="not sender.retry",
        after="False",
        tests=(f"{MEMORY}::test_a_refused_request_is_forgotten_when_its_retry_is_answered",),
    ),
    Mutant(
        name="a retry of another failure that is refused does not count",
        target="rljob_runtime.gateway.memory:Memory._not_served",
        before="max(1, counts[amount])",
        after="counts[amount]",
        tests=(f"{MEMORY}::test_a_retry_that_is_refused_counts_whatever_its_request_met",),
    ),
    Mutant(
        name="an attempt that waits for its own share waits for others",
        target="rljob_runtime.gateway.memory:_Wait.is_lost",
        before="not self.is_agents",
        after="True",
        tests=(f"{MEMORY}::test_a_wait_for_the_attempts_own_bytes_is_its_agents_doing",),
    ),
    Mutant(
        name="connections are those of a small job",
        target="rljob_runtime.gateway.server:ServerSettings.of",
        before="max(CONNECTIONS.total, bounds.connections)",
        after="CONNECTIONS.total",
        tests=(f"{MEMORY}::test_a_budget_and_the_connections_follow_from_the_bounds",),
    ),
)
