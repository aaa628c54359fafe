"""Mutants of rljob_operator."""

from hack.mutants import Mutant

SEALS = "tests/unit/operator/test_seals.py"
APPLIER = "tests/unit/operator/test_applier.py"
ENVIRONMENTS = "tests/unit/operator/test_environments.py"

MUTANTS = (
    Mutant(
        name="a flag has another variable than the page says",
        target="rljob_operator.__main__:parser",
        before='"RLJOB_LEASE_NAME"',
        after='"RLJOB_LEADER_NAME"',
        tests=("tests/unit/docs/test_operator.py::test_every_flag_is_in_the_table_with_its_variable_and_default",),
    ),
    Mutant(
        name="an operator that lost its Lease ends, and the kubelet starts it ever later",
        target="rljob_operator.app:serve",
        before='_logger.warning("%s; on standby", error)',
        after="raise error",
        tests=("tests/unit/operator/test_app.py::test_who_loses_the_lease_is_followed_by_one_that_knows_nothing",),
    ),
    Mutant(
        name="a look at pods may be older than those just made",
        target="rljob_operator.applier:Applier._create_pod",
        before="self._observe_pods([await self._kube.create(POD, creation.manifest)])",
        after="await self._kube.create(POD, creation.manifest)",
        tests=(f"{APPLIER}::test_no_look_at_pods_is_older_than_those_it_made_itself",),
    ),
    Mutant(
        name="each report keeps a status out",
        target="rljob_operator.applier:Applier.write_status",
        before="not tries_left or not only_reported(job, live)",
        after="True",
        tests=("tests/unit/operator/policies/status/test_write_conflict.py",),
    ),
    Mutant(
        name="whatever pod has the name is deleted",
        target="rljob_operator.applier:Applier._delete_pod",
        before="uid=uid",
        after="",
        tests=(f"{APPLIER}::test_only_the_leader_deletes_a_pod_and_only_the_judged_one",),
        canary=True,
    ),
    Mutant(
        name="a page prints what a limit was",
        target="rljob_operator.health:Limits.watch",
        before="120.0",
        after="60.0",
        tests=("tests/unit/docs/test_figures.py",),
    ),
    Mutant(
        name="a plan is made in the event loop",
        target="rljob_operator.reconciler:Reconciler._reconcile",
        before="await asyncio.to_thread(plan, job, observed, now, self._config, admitted.refused)",
        after="plan(job, observed, now, self._config, admitted.refused)",
        tests=(
            "tests/unit/operator/test_cost.py::test_other_jobs_and_the_loop_go_on_while_the_largest_job_is_planned",
        ),
    ),
    Mutant(
        name="a status that no operator wrote is believed",
        target="rljob_operator.seals:Seals.forgery",
        before="(seal or truth) and found not in seal",
        after="False",
        tests=(f"{SEALS}::test_another_process_finds_it_too_and_knows_no_truth",),
    ),
    Mutant(
        name="the status before is not sealed beside the coming one",
        target="rljob_operator.seals:Seals.announce",
        before="tuple(dict.fromkeys((coming, before)))",
        after="(coming,)",
        tests=(f"{SEALS}::TestHistories",),
    ),
    Mutant(
        name="a status is sealed after it was written",
        target="rljob_operator.seals:Seals.announce",
        before="await self._write(namespace, name, uid, tuple(dict.fromkeys((coming, before))))",
        after="pass",
        tests=(f"{SEALS}::TestHistories",),
    ),
    Mutant(
        name="the Role of an earlier job seals this one's status",
        target="rljob_operator.seals:Seals._read",
        before='role is None or all(owner["uid"] != uid for owner in role["metadata"].get("ownerReferences") or ())',
        after="role is None",
        tests=(f"{SEALS}::test_a_role_of_an_earlier_job_of_this_name_says_nothing",),
    ),
    Mutant(
        name="a job of an operator without seals is never sealed",
        target="rljob_operator.seals:Seals.forgery",
        before="version is not None and not seal",
        after="False",
        tests=(f"{SEALS}::test_a_job_of_an_operator_without_seals_is_sealed_at_first",),
    ),
    Mutant(
        name="a forgery is told for ever",
        target="rljob_operator.seals:Seals.alarm",
        before="message and not is_reported(self._clock() - when)",
        after="False",
        tests=(f"{SEALS}::test_a_forgery_is_told_for_a_while",),
    ),
    Mutant(
        name="an error in a plan is not told",
        target="rljob_operator.workqueue:WorkQueue._serve",
        before="await self._tell(key, error)",
        after="",
        tests=("tests/unit/operator/test_reconciler.py::test_an_error_in_a_plan_is_told_and_taken_back",),
    ),
    Mutant(
        name="runners take the places of pods that are refused",
        target="rljob_operator.applier:Applier.apply",
        before="conflict is None and plan is given",
        after="conflict is None",
        tests=(f"{ENVIRONMENTS}::test_runners_take_no_place_of_a_pod_that_is_refused",),
    ),
    Mutant(
        name="a Deployment that was just deleted is made without its owner's look",
        target="rljob_operator.writers.deployments:DeploymentWriter._apply_one",
        before='{**metadata, "uid": live["metadata"]["uid"]}',
        after="metadata",
        tests=(f"{ENVIRONMENTS}::test_an_apply_does_not_create_what_was_just_deleted",),
        canary=True,
    ),
    Mutant(
        name="a runner key opens with the key of capabilities",
        target="rljob_operator.writers.children:_fresh_secrets",
        before="mint_runner_key(bytes.fromhex(runners), one)",
        after="mint_runner_key(bytes.fromhex(keys[c.CAPABILITY_KEY]), one)",
        tests=(f"{ENVIRONMENTS}::test_the_secret_of_environments_has_a_key_for_each",),
    ),
)
