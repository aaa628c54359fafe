"""Mutants of the leases of runners."""

from hack.mutants import Mutant

RUNNERS = "tests/unit/scheduling/episodes/test_runners.py"
WITHOUT_ENGINE = "tests/unit/coordinator/episodes/test_without_engine.py"

MUTANTS = (
    Mutant(
        name="a runner claims an attempt of another environment",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.may_have",
        before="self._environments[attempt] != environment",
        after="False",
        tests=("tests/unit/scheduling/episodes/test_runners.py::test_no_runner_of_another_environment_has_an_attempt",),
    ),
    Mutant(
        name="one of several runners takes all attempts",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.take",
        before="math.ceil(len(wanted) / max(1, runners))",
        after="len(wanted)",
        tests=(
            "tests/unit/scheduling/episodes/test_runners.py::test_each_of_several_runners_takes_its_part_of_what_waits",
        ),
    ),
    Mutant(
        name="an attempt on its way to a runner is silent",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.lapsed",
        before="held.begun and now - held.last_contact > self._patience",
        after="now - held.last_contact > self._patience",
        tests=(
            "tests/unit/scheduling/episodes/test_runners.py::test_until_a_runner_receives_an_attempt_none_is_silent",
            "tests/unit/coordinator/episodes/test_resumptions.py::test_an_attempt_on_its_way_to_a_runner_is_neither_silent_nor_late",
        ),
    ),
    Mutant(
        name="an attempt on its way to a runner is late",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.has_begun",
        before="held is not None and held.begun and held.runner is not None",
        after="held is not None and held.runner is not None",
        tests=(
            "tests/unit/coordinator/episodes/test_resumptions.py::test_an_attempt_on_its_way_to_a_runner_is_neither_silent_nor_late",
        ),
    ),
    Mutant(
        name="an attempt that no runner received waits last",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.transfer",
        before="self._waiting[environment].move_to_end(successor, last=False)",
        after="pass",
        tests=("tests/unit/scheduling/episodes/test_runners.py",),
    ),
    Mutant(
        name="a runner is given what no engine generates",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.take",
        before="[attempt for attempt in waiting if self._wanted(attempt)]",
        after="list(waiting)",
        tests=(f"{RUNNERS}::test_an_attempt_that_is_not_wanted_waits_and_asks_for_no_runner",),
    ),
    Mutant(
        name="what waits for an engine asks for a runner",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.unserved",
        before="since < before and self._wanted(attempt)",
        after="since < before",
        tests=(f"{RUNNERS}::test_an_attempt_that_is_not_wanted_waits_and_asks_for_no_runner",),
    ),
    Mutant(
        name="a full runner is no runner of its environment",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.heartbeat",
        before="self._environment_contacts[environment] = now",
        after="pass",
        tests=(f"{RUNNERS}::test_an_environment_of_which_a_runner_calls_is_served",),
    ),
    Mutant(
        name="a runner that calls serves all environments",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.unserved",
        before="self._environment_contacts.get(name, -math.inf)",
        after="max(self._environment_contacts.values(), default=-math.inf)",
        tests=(f"{RUNNERS}::test_an_environment_of_which_a_runner_calls_is_served",),
    ),
    Mutant(
        name="a call of tools under way is taken from its runner",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.leave",
        before="return waits",
        after="return True",
        tests=(f"{WITHOUT_ENGINE}::test_an_attempt_leaves_no_runner_during_a_call_of_its_tools",),
    ),
    Mutant(
        name="an attempt that is leaving stays at its next turn",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.leavers",
        before="attempt in self._leaving",
        after="False",
        tests=(f"{WITHOUT_ENGINE}::test_an_attempt_leaves_no_runner_during_a_call_of_its_tools",),
    ),
    Mutant(
        name="an outage of engines is the policy's time",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.leavers",
        before="now - since > self._patience",
        after="False",
        tests=(f"{WITHOUT_ENGINE}::test_an_outage_of_all_engines_truncates_no_episode",),
    ),
    Mutant(
        name="the first part of an outage is the policy's time",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.leavers",
        before="now if decided else since",
        after="now",
        tests=(f"{WITHOUT_ENGINE}::test_an_outage_of_all_engines_truncates_no_episode",),
    ),
    Mutant(
        name="the timeline has a part of an attempt without a runner",
        target="rljob_runtime.scheduling.episodes.times:_without",
        before="reached = max(reached, pause.until)",
        after="reached = max(reached, pause.since)",
        tests=("tests/unit/scheduling/episodes/test_times.py::test_pauses_cut_the_parts_and_nothing_else",),
    ),
    Mutant(
        name="a turn counts while its attempt has no runner",
        target="rljob_runtime.scheduling.episodes.times:attempt_times",
        before="counted_seconds(max(span.opened, reached), span.stored, pauses)",
        after="counted_seconds(max(span.opened, reached), span.stored)",
        tests=("tests/unit/scheduling/episodes/test_times.py::test_time_without_a_runner_is_in_no_part",),
    ),
)
