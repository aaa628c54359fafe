"""Mutants of rljob_runtime.entrypoints."""

from hack.mutants import Mutant

GATEWAY = "tests/unit/entrypoints/test_gateway.py"
POD_GATEWAY = "tests/unit/entrypoints/test_pod_gateway.py"
PRE_STOP = "tests/unit/entrypoints/test_pre_stop.py"
RAY_HEAD = "tests/unit/entrypoints/test_ray_head.py"

EXITS_IMMEDIATELY = (
    "tests/unit/entrypoints/test_coordinator.py::test_a_coordinator_without_its_lease_or_its_head_exits_immediately"
)

MUTANTS = (
    Mutant(
        name="a gateway opens as many connections as the system allows at first",
        target="rljob_runtime.entrypoints.gateway:allow_descriptors",
        before="soft < wanted",
        after="False",
        tests=("tests/unit/entrypoints/test_gateway.py::test_the_process_may_open_a_descriptor_for_each_connection",),
    ),
    Mutant(
        name="the link has the calls of a small job",
        target="rljob_runtime.entrypoints.pod_gateway:PodGateway.serve",
        before="self._config.bounds.calls",
        after="LinkSettings().calls",
        tests=(f"{POD_GATEWAY}::test_the_container_finds_its_config_the_text_and_the_link",),
    ),
    Mutant(
        name="a gateway takes what its job needs and not what its container has",
        target="rljob_runtime.entrypoints.gateway:fitting_bounds",
        before="wanted.within(memory)",
        after="wanted",
        tests=(
            "tests/unit/entrypoints/test_gateway.py::test_a_container_with_less_memory_has_smaller_bounds_and_says_so",
        ),
    ),
    Mutant(
        name="a gateway that ends waits for its requests",
        target="rljob_runtime.entrypoints.gateway:_serve",
        before="await link.close()",
        after="pass",
        tests=(f"{GATEWAY}::test_an_agent_plays_an_episode_and_what_waits_at_the_end_is_answered",),
    ),
    Mutant(
        name="a gateway imports torch",
        target="rljob_runtime.entrypoints.gateway:leave_out_torch",
        before='sys.modules.setdefault("torch", None)',
        after="None",
        tests=(f"{GATEWAY}::test_an_agent_plays_an_episode_and_what_waits_at_the_end_is_answered",),
    ),
    Mutant(
        name="a gateway outlives its parent",
        target="rljob_runtime.entrypoints.gateway:_tied_to",
        before="prctl(PR_SET_PDEATHSIG, signal.SIGTERM)",
        after="None",
        tests=(f"{GATEWAY}::test_a_gateway_does_not_outlive_its_parent",),
    ),
    Mutant(
        name="a template that cannot be used is tried again",
        target="rljob_runtime.entrypoints.gateway:_refused",
        before="_say(error.told if isinstance(error, TemplateNotUsable) else error, REFUSED)",
        after="_say(error.told, FAILED)",
        tests=(f"{GATEWAY}::test_a_template_that_changes_earlier_turns_ends_the_process",),
    ),
    Mutant(
        name="connections outlive the program that they belong to",
        target="rljob_runtime.entrypoints.__main__:_start_over",
        before="os.set_inheritable(int(name), False)",
        after="pass",
        tests=("tests/unit/entrypoints/test_ray_node.py::test_a_lost_lease_starts_the_program_over_in_its_pod",),
    ),
    Mutant(
        name="a coordinator that lost its Lease takes its time to leave Ray",
        target="rljob_runtime.entrypoints.coordinator:_disconnect_from_ray",
        before="in_time = False",
        after="in_time = True",
        tests=(EXITS_IMMEDIATELY,),
    ),
    Mutant(
        name="a coordinator says goodbye to a head that has ended",
        target="rljob_runtime.entrypoints.coordinator:_disconnect_from_ray",
        before="(LeaseLost, NodeEnded)",
        after="LeaseLost",
        tests=(EXITS_IMMEDIATELY,),
    ),
    Mutant(
        name="a driver looks for its raylet among its own processes",
        target="rljob_runtime.entrypoints.coordinator:_init_driver",
        before="services.find_node_ids = lambda: {node_id}",
        after="pass",
        tests=("tests/integration/entrypoints/test_ray_head.py",),
    ),
    Mutant(
        name="what is left to the rewards' container is not reaped",
        target="rljob_runtime.entrypoints.init_process:run_reaped",
        before="pid, status = os.wait()",
        after="pid, status = os.waitpid(child, 0)",
        tests=("tests/unit/rewards/test_remote.py::test_nothing_stays_as_a_zombie",),
    ),
    Mutant(
        name="a pod waits for a coordinator that is gone",
        target="rljob_runtime.entrypoints.pre_stop:wait",
        before="silent >= PRE_STOP_PATIENCE",
        after="False",
        tests=(PRE_STOP,),
    ),
    Mutant(
        name="an agent of Ray's is waited for as if it held work",
        target="rljob_runtime.entrypoints.pre_stop:actors",
        before='title.partition(".")[0].rstrip() == ACTOR',
        after='title.startswith("ray::")',
        tests=(PRE_STOP,),
    ),
    Mutant(
        name="a coordinator takes any head for its own",
        target="rljob_runtime.entrypoints.ray_head:HeadClient.run",
        before='found is not None and found["wanted"] == name',
        after="found is not None",
        tests=(f"{RAY_HEAD}::test_a_name_that_is_none_is_no_head",),
    ),
    Mutant(
        name="a head that ends is not noticed",
        target="rljob_runtime.entrypoints.ray_head:HeadClient.up",
        before="self._head is not None and holder(self._folder.head) == self._head",
        after="self._head is not None",
        tests=(f"{RAY_HEAD}::test_the_coordinator_notices_the_end_of_its_head",),
    ),
    Mutant(
        name="a head goes on without a coordinator",
        target="rljob_runtime.entrypoints.ray_head:_serve",
        before="holder(folder.wanted) == wanted",
        after="True",
        tests=(f"{RAY_HEAD}::test_no_head_runs_before_a_coordinator_wants_one_nor_after",),
    ),
    Mutant(
        name="a lock follows a link",
        target="rljob_runtime.entrypoints.ray_head:_SAFELY",
        before="os.O_NOFOLLOW | os.O_NONBLOCK",
        after="os.O_NONBLOCK",
        tests=(f"{RAY_HEAD}::test_nothing_of_the_coordinators_is_written_through_a_link",),
    ),
    Mutant(
        name="a lock that is looked at is taken",
        target="rljob_runtime.entrypoints.ray_head:_TRIES",
        before="100",
        after="1",
        tests=(f"{RAY_HEAD}::test_a_reader_of_a_lock_blocks_no_holder",),
    ),
    Mutant(
        name="the head's tables die with it",
        target="rljob_runtime.entrypoints.ray_node:environment",
        before='settings["RAY_gcs_storage"] = "rocksdb"',
        after='settings["RAY_gcs_storage"] = "memory"',
        tests=(
            (
                "tests/unit/coordinator/control_plane/test_kubernetes.py::test_the_token_is_named_by_its_file_and_"
                "only_the_head_has_tables"
            ),
        ),
        canary=True,
    ),
    Mutant(
        name="samples are served without a key",
        target="rljob_runtime.entrypoints.sample_server:_VolumeReader.answer",
        before="not hmac.compare_digest(given.encode(), self._key)",
        after="given and not hmac.compare_digest(given.encode(), self._key)",
        tests=("tests/unit/entrypoints/test_sample_server.py::test_without_the_key_nothing_is_told",),
    ),
    Mutant(
        name="a gateway's container ends well though the wait for the coordinator failed",
        target="rljob_runtime.entrypoints.gateway_container:GatewayContainer.run",
        before="ended.result()",
        after="pass",
        tests=(
            "tests/unit/entrypoints/test_gateway_container.py::"
            "test_a_wait_for_the_coordinator_that_fails_is_no_end_in_order",
        ),
    ),
)
