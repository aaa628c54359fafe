"""Mutants of how episodes end: by a limit, by an outage, by a load that takes too long, and with their pods."""

from hack.mutants import Mutant

ONE_EPISODE = "tests/unit/envs/test_one_episode.py"
OPEN_ENV = "tests/unit/envs/test_openenv.py"
RUNNER = "tests/unit/envs/test_runner.py"
VERIFIERS = "tests/unit/envs/test_verifiers.py"

MUTANTS = (
    Mutant(
        name="each attempt begins another load of its environment",
        target="rljob_env.verifiers.harness:VerifiersHarness._load",
        before="await self._until_ended(self._left.pop())",
        after="pass",
        tests=(f"{VERIFIERS}::test_a_load_that_outlasts_its_attempt_goes_on_for_the_next_one",),
    ),
    Mutant(
        name="a used pod runs another episode",
        target="rljob_env.one_episode:MarkingHarness.run",
        before="self._mark.set()",
        after="pass",
        tests=(ONE_EPISODE,),
    ),
    Mutant(
        name="an agent that removes the mark has its pod to itself",
        target="rljob_env.one_episode:PodMark.is_set",
        before="self._was_set or os.path.lexists(self._file)",
        after="os.path.lexists(self._file)",
        tests=(ONE_EPISODE,),
    ),
    Mutant(
        name="the mark of a pod holds for all pods of its volume",
        target="rljob_env.one_episode:PodMark.__init__",
        before="pod or socket.gethostname()",
        after="''",
        tests=(ONE_EPISODE,),
    ),
    Mutant(
        name="a runner of one episode leases the next one",
        target="rljob_env.runner:Runner._lease_and_run",
        before="self._settings.once and episodes",
        after="False",
        tests=(f"{ONE_EPISODE}::test_a_runner_runs_one_episode_and_ends",),
    ),
    Mutant(
        name="an environment that is done in the last turn was ended by it",
        target="rljob_env.openenv.harness:OpenEnvHarness._play",
        before="None if session.done else Limit.TURNS",
        after="Limit.TURNS",
        tests=(f"{OPEN_ENV}::test_an_end_in_the_last_turn_reaches_no_limit",),
    ),
    Mutant(
        name="a time-out of an environment's own is the job's",
        target="rljob_env.verifiers.episode:_limit",
        before="time.monotonic() >= given['deadline']",
        after="True",
        tests=(f"{VERIFIERS}::test_a_limit_is_the_jobs_and_none_of_the_environments_own",),
    ),
    Mutant(
        name="an older gateway fails each episode that reaches a limit",
        target="rljob_env.runner:Runner._report",
        before="report.limit is not None",
        after="False",
        tests=(f"{RUNNER}::test_an_older_gateway_gets_a_report_of_what_it_knows",),
    ),
    Mutant(
        name="an older gateway that knows no answers gets no limit",
        target="rljob_env.runner:Runner._report",
        before="replace(report, answer=None)",
        after="replace(report, answer=None, limit=None)",
        tests=(f"{RUNNER}::test_an_older_gateway_gets_a_report_of_what_it_knows",),
    ),
    Mutant(
        name="the time of a rollout begins before its environment is loaded",
        target="rljob_env.verifiers.episode:_role",
        before="given['deadline'] - time.monotonic()",
        after="60.0",
        tests=(f"{VERIFIERS}::test_the_time_of_a_rollout_begins_when_its_environment_is_loaded",),
    ),
    Mutant(
        name="an environment may load for ever",
        target="rljob_env.verifiers.harness:VerifiersHarness.run",
        before="await self._load(given, seconds)",
        after="pass",
        tests=(f"{VERIFIERS}::test_an_environment_that_loads_for_too_long_is_a_failure_of_ours",),
    ),
    Mutant(
        name="the load of an environment is the policy's time",
        target="rljob_env.verifiers.harness:VerifiersHarness.run",
        before="loaded > LOAD_SHARE * seconds",
        after="False",
        tests=(f"{VERIFIERS}::test_a_time_out_after_a_long_load_is_a_failure_of_ours",),
    ),
    Mutant(
        name="time in which the gateway was away is the policy's",
        target="rljob_env.runner:_lacked",
        before="report.limit is Limit.SECONDS",
        after="False",
        tests=(f"{RUNNER}::test_time_in_which_the_gateway_was_away_is_no_zero",),
    ),
    Mutant(
        name="the last second before a deadline has no outage",
        target="rljob_env.runner:_lacked",
        before="assignment.seconds_left() < LAST_SECONDS",
        after="False",
        tests=(f"{RUNNER}::test_time_in_which_the_gateway_was_away_is_no_zero",),
    ),
    Mutant(
        name="an outage hides the part of ours that failed",
        target="rljob_env.runner:_lacked",
        before="report.failed is not None",
        after="False",
        tests=(f"{RUNNER}::test_an_outage_explains_no_other_failure",),
    ),
    Mutant(
        name="rewards add up to no number",
        target="rljob_env.openenv.session:Session._observe",
        before="finite((self.reward or 0.0) + reward, 'the sum of the rewards')",
        after="(self.reward or 0.0) + reward",
        tests=("tests/unit/envs/test_fuzz.py::test_a_frame_of_an_openenv_server_is_an_observation_or_a_failure",),
    ),
)
