"""Mutants of rljob_operator.policies.pods."""

from hack.mutants import Mutant

CAPACITY = "tests/unit/operator/policies/pods/test_capacity.py"
DEVICES = "tests/unit/operator/policies/pods/test_devices.py"
RAY_HEAD = "tests/unit/operator/policies/pods/test_ray_head.py"
PLAN = "tests/unit/operator/policies/test_plan.py"
RELAY_MEMBERSHIP = "tests/unit/operator/policies/pods/test_relay_membership.py"
ENVIRONMENTS = "tests/unit/operator/policies/pods/test_environments.py"
GATEWAY = "tests/unit/operator/policies/pods/test_gateway_container.py"
EGRESS = "tests/unit/operator/policies/pods/test_egress.py"
PROXY = "tests/unit/operator/policies/pods/test_egress_proxy.py"
RUNNERS = "tests/unit/operator/policies/base/test_runners.py"

MUTANTS = (
    Mutant(
        name="the egress proxy has a token",
        target="rljob_operator.policies.pods.egress_proxy:_pod_spec",
        before='"automountServiceAccountToken": False',
        after='"automountServiceAccountToken": True',
        tests=(f"{PROXY}::test_the_proxy_is_confined_and_holds_its_own_key_alone",),
    ),
    Mutant(
        name="the egress proxy outlives its job",
        target="rljob_operator.policies.pods.egress_proxy:to_change",
        before="runs and egress.uses_proxy(job)",
        after="egress.uses_proxy(job)",
        tests=(f"{PROXY}::test_the_proxy_lives_as_long_as_the_runners",),
    ),
    Mutant(
        name="an environment has another one's proxy key",
        target="rljob_operator.policies.pods.egress:proxy_variables",
        before="c.proxy_key_item(environment.name)",
        after="c.proxy_key_item(job.spec.environments[0].name)",
        tests=(f"{PROXY}::test_programs_find_the_proxy_with_their_environments_key",),
    ),
    Mutant(
        name="pods of earlier releases have another shape",
        target="rljob_operator.policies.pods.manifests:shape",
        before='content["accelerators"] and accelerator.resource != spec.scheduling.accelerator_resource',
        after="True",
        tests=("tests/unit/operator/policies/pods/test_first_release.py",),
    ),
    Mutant(
        name="a gang is compared with each kind of its pods alone",
        target="rljob_operator.policies.pods.capacity:fits",
        before="asked > sum((amounts(node.allocatable).get(name, Decimal(0)) for node in usable), Decimal(0))",
        after=(
            "False and asked > sum((amounts(node.allocatable).get(name, Decimal(0)) for node in usable), Decimal(0))"
        ),
        tests=(CAPACITY,),
    ),
    Mutant(
        name="a sidecar's resources are not counted",
        target="rljob_operator.policies.pods.capacity:kind_of",
        before="sidecars = _sum(sidecars, _asked(container))",
        after="pass",
        tests=(f"{CAPACITY}::test_what_a_pod_asks_for",),
    ),
    Mutant(
        name="a claim is in the pod and not in its container",
        target="rljob_operator.policies.pods.devices:give",
        before='resources["claims"] = [*resources.get("claims", []), {"name": CLAIM}]',
        after="pass",
        tests=(f"{DEVICES}::test_what_pods_ask_for",),
    ),
    Mutant(
        name="a manifest changes the template that it shares",
        target="rljob_operator.policies.pods.devices:give",
        before='{**container.get("resources", {})}',
        after='container.get("resources", {})',
        tests=("tests/unit/operator/policies/pods/test_template_fuzz.py::test_a_template_is_refused_or_makes_pods",),
    ),
    Mutant(
        name="a new version of the operator gives every job's pods another shape",
        target="rljob_operator.policies.pods.manifests:shape",
        before='content["accelerators"] and accelerator.resource != spec.scheduling.accelerator_resource',
        after='content["accelerators"]',
        tests=(f"{DEVICES}::test_shapes_of_jobs_that_are_stored_already_stay",),
    ),
    Mutant(
        name="what runs rewards has the coordinator's token",
        target="rljob_operator.policies.pods.manifests:_rewards_container",
        before='further_container(main, user, c.REWARDS_CONTAINER, "rewards", LOCKED, env, mounts)',
        after=(
            'further_container(main, user, c.REWARDS_CONTAINER, "rewards", LOCKED, env, '
            '[*main["volumeMounts"], *mounts])'
        ),
        tests=("tests/unit/operator/policies/pods/test_rewards_container.py",),
    ),
    Mutant(
        name="a new version of the operator makes Workloads out of date",
        target="rljob_operator.policies.pods.manifests:charged",
        before="not _has_head(job, role) or ray_head.takes_of_main(template)",
        after="not _has_head(job, role)",
        tests=(f"{RAY_HEAD}::test_a_quota_counts_what_an_earlier_operator_asked_for",),
    ),
    Mutant(
        name="the coordinator's Service is headless",
        target="rljob_operator.policies.pods.owned_objects:service",
        before='"publishNotReadyAddresses": True',
        after='"clusterIP": "None", "publishNotReadyAddresses": True',
        tests=("tests/unit/operator/policies/pods/test_manifests.py::test_the_coordinators_address_outlives_its_pods",),
    ),
    Mutant(
        name="an address moves with new coordinators alone",
        target="rljob_operator.policies.pods.owned_objects:missing",
        before="coordinator.incarnation != observed.addressed",
        after="new is not None",
        tests=(f"{PLAN}::test_a_coordinator_that_survives_gets_its_address_back",),
    ),
    Mutant(
        name="a drain may take all machines after the job has grown",
        target="rljob_operator.policies.pods.owned_objects:missing",
        before="len(targeted) == len(machines)",
        after="True",
        tests=(f"{PLAN}::test_one_rollout_machine_at_a_time_may_be_drained",),
    ),
    Mutant(
        name="another job's pods reach this one's",
        target="rljob_operator.policies.pods.owned_objects:_network_policy",
        before='[{"podSelector": {"matchLabels": {c.LABEL_JOB: job.name}}}]',
        after='[{"podSelector": {}}]',
        tests=("tests/unit/operator/policies/pods/test_network_policy.py",),
    ),
    Mutant(
        name="a drain may take every machine",
        target="rljob_operator.policies.pods.owned_objects:disruption_budget",
        before="max(0, machines - 1)",
        after="0",
        tests=(f"{PLAN}::test_one_rollout_machine_at_a_time_may_be_drained",),
        canary=True,
    ),
    Mutant(
        name="an incarnation is used again",
        target="rljob_operator.policies.pods.pod_set:to_create",
        before="max(observed.highest_incarnation(machine), incarnations.get(machine, 0))",
        after="observed.highest_incarnation(machine)",
        tests=(
            f"{PLAN}::test_a_status_is_written_when_it_differs",
            f"{PLAN}::test_a_lost_pods_name_is_not_used_again",
            f"{PLAN}::test_a_fresh_operator_keeps_the_pause_after_failures",
            f"{PLAN}::test_what_is_complete_stays_complete",
        ),
        canary=True,
    ),
    Mutant(
        name="a trainer on a node that shuts down is not asked to save",
        target="rljob_operator.policies.pods.pod_set:members",
        before="pod.deleting or pod.uid in shut_down or None",
        after="pod.deleting or None",
        tests=("tests/unit/operator/policies/lifecycle/test_eviction.py",),
    ),
    Mutant(
        name="what waits for a refused coordinator keeps its place",
        target="rljob_operator.policies.pods.pod_set:idle",
        before='(Removal(pod, "NoCoordinator") for pod in observed.pods if pod.live)',
        after='(Removal(pod, "NoCoordinator") for pod in observed.pods if not pod.live)',
        tests=("tests/unit/operator/policies/test_refusal.py",),
    ),
    Mutant(
        name="Ray's head has the coordinator's token",
        target="rljob_operator.policies.pods.ray_head:_mounts",
        before=(
            '[{"name": "rljob-head-tmp", "mountPath": c.TMP_DIR}, {"name": "rljob-ray", "mountPath": '
            'c.RAY_DIR}, {"name": "rljob-head-shm", "mountPath": c.SHM_DIR}, {"name": "rljob-head-auth", '
            '"mountPath": c.AUTH_DIR, "readOnly": True}, {"name": "rljob-state", "mountPath": '
            'f"{c.STATE_DIR}/{c.RAY_TABLES}", "subPath": f"{folder}/{c.RAY_TABLES}"}]'
        ),
        after=(
            '[{"name": "rljob-head-tmp", "mountPath": c.TMP_DIR}, {"name": "rljob-token", "mountPath": '
            '"/var/run/secrets/kubernetes.io/serviceaccount"}, {"name": "rljob-ray", "mountPath": '
            'c.RAY_DIR}, {"name": "rljob-head-shm", "mountPath": c.SHM_DIR}, {"name": "rljob-head-auth", '
            '"mountPath": c.AUTH_DIR, "readOnly": True}, {"name": "rljob-state", "mountPath": '
            'f"{c.STATE_DIR}/{c.RAY_TABLES}", "subPath": f"{folder}/{c.RAY_TABLES}"}]'
        ),
        tests=(f"{RAY_HEAD}::test_who_has_rays_token_has_not_the_api_servers",),
    ),
    Mutant(
        name="the head's resources are in addition",
        target="rljob_operator.policies.pods.ray_head:split",
        before='rest["limits"] = {**given_limits, **_all_written({name: limits[name] - head[name] for name in head})}',
        after="pass",
        tests=(f"{RAY_HEAD}::test_the_parts_add_up_and_stay_of_their_class",),
    ),
    Mutant(
        name="a coordinator's request is above its limit",
        target="rljob_operator.policies.pods.ray_head:_share",
        before="max(of_request, request - (limit - of_limit))",
        after="of_request",
        tests=(f"{RAY_HEAD}::test_the_parts_add_up_and_stay_of_their_class",),
    ),
    Mutant(
        name="who joins the chain joins at its end, wherever it is",
        target="rljob_operator.policies.pods.relay_membership:_joined",
        before="wished if detours[wished] == least else last",
        after="wished",
        tests=(RELAY_MEMBERSHIP,),
    ),
    Mutant(
        name="a new chain keeps the old epoch",
        target="rljob_operator.policies.pods.relay_membership:next_topology",
        before="epoch=floor + 1",
        after="epoch=floor",
        tests=(RELAY_MEMBERSHIP,),
    ),
    Mutant(
        name="a chain is whole that the coordinator has closed over a gap",
        target="rljob_operator.policies.pods.relay_membership:chain_length",
        before="len(order.chain) if reported is None else len(set(order.chain) & set(reported.chain))",
        after="len(order.chain)",
        tests=(f"{PLAN}::test_the_chain_that_counts_is_the_coordinators",),
    ),
    Mutant(
        name="a Deployment keeps a foreign number of runners",
        target="rljob_operator.policies.pods.environments:to_start",
        before="(seen.wanted, seen.shape, seen.egress)",
        after="(count, seen.shape, seen.egress)",
        tests=(f"{RUNNERS}::test_a_deployment_that_is_not_as_wanted_is_applied_again",),
    ),
    Mutant(
        name="an edit of a Deployment outside its shape stays",
        target="rljob_operator.policies.pods.environments:to_start",
        before="not observed.children_present",
        after="False",
        tests=(f"{RUNNERS}::test_an_edit_outside_the_hash_is_undone_at_the_next_check",),
    ),
    Mutant(
        name="runners outlive their job",
        target="rljob_operator.policies.pods.environments:to_stop",
        before="deployment(job, environment, 0, config, anywhere, runners.egress)",
        after="deployment(job, environment, environment.runners, config, anywhere, runners.egress)",
        tests=(f"{RUNNERS}::test_an_ended_job_has_no_runners",),
    ),
    Mutant(
        name="runners reach every port of the job",
        target="rljob_operator.policies.pods.environments:pod_template",
        before="c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE",
        after="c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE, c.LABEL_JOB: job.name",
        tests=(f"{ENVIRONMENTS}::test_runners_reach_the_gateway_alone",),
    ),
    Mutant(
        name="a template gives runners a token",
        target="rljob_operator.policies.pods.environments:_pod_spec",
        before='"automountServiceAccountToken": False',
        after='"automountServiceAccountToken": True',
        tests=(f"{ENVIRONMENTS}::test_a_template_is_refused_or_makes_runners",),
    ),
    Mutant(
        name="every client reaches runners",
        target="rljob_operator.policies.pods.egress:of_all",
        before='"ingress": []',
        after='"ingress": [{}]',
        tests=(f"{EGRESS}::test_every_runner_reaches_names_and_the_gateway",),
    ),
    Mutant(
        name="an environment reaches what another one names",
        target="rljob_operator.policies.pods.egress:of_one",
        before="runner_labels(job, environment)",
        after="{c.LABEL_ENVIRONMENTS_OF: job.name}",
        tests=(f"{EGRESS}::test_an_environment_reaches_only_what_it_names",),
    ),
    Mutant(
        name="a name of the internet opens a namespace",
        target="rljob_operator.policies.pods.egress:_SERVICE",
        before=r"(\.cluster\.local)?",
        after=r"(\..+)?",
        text=True,
        tests=(f"{EGRESS}::test_another_host_is_reached_through_the_proxy",),
    ),
    Mutant(
        name="every namespace's pods are a Service",
        target="rljob_operator.policies.pods.egress:_pods_of",
        before='{"matchLabels": {NAMESPACE_NAME: namespace}}',
        after="{}",
        tests=(f"{EGRESS}::test_where_a_server_is",),
    ),
    Mutant(
        name="who names every address gets the nodes' credentials",
        target="rljob_operator.policies.pods.egress:_block",
        before='{"cidr": cidr, "except": hidden}',
        after='{"cidr": cidr}',
        tests=(f"{EGRESS}::test_addresses_that_an_environment_names",),
    ),
    Mutant(
        name="any address resolves names",
        target="rljob_operator.policies.pods.egress:of_all",
        before="_RESOLVERS",
        after='{"ports": _RESOLVERS["ports"], "to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"namespaceSelector": {}}]}',
        tests=(f"{EGRESS}::test_no_public_address_is_a_resolver",),
    ),
    Mutant(
        name="an upgrade leaves the policy of all environments",
        target="rljob_operator.policies.pods.owned_objects:missing",
        before="_changed_egress(job, observed, config)",
        after="()",
        tests=(f"{RUNNERS}::test_runners_of_an_earlier_release_get_their_policies_immediately",),
    ),
    Mutant(
        name="a Deployment that stops claims policies that are not applied",
        target="rljob_operator.policies.pods.environments:to_stop",
        before="runners.egress",
        after="egress.digest(job, environment, True)",
        tests=(f"{RUNNERS}::test_no_changed_policy_is_applied_while_runners_stop",),
    ),
    Mutant(
        name="a runner has the keys of all environments",
        target="rljob_operator.policies.pods.environments:_volumes",
        before='"items": [key]',
        after='"items": []',
        tests=(f"{ENVIRONMENTS}::test_a_runner_has_its_settings_its_key_and_nothing_else",),
    ),
    Mutant(
        name="the coordinator has the gateway's keys",
        target="rljob_operator.policies.pods.gateway:shared_mount",
        before='[{"name": _SHARED, "mountPath": c.GATEWAY_DIR}]',
        after='[{"name": _SHARED, "mountPath": c.GATEWAY_DIR}, {"name": _KEYS, "mountPath": c.GATEWAY_KEYS_DIR}]',
        tests=(f"{GATEWAY}::test_it_has_the_keys_and_nothing_of_the_coordinators",),
    ),
    Mutant(
        name="the gateway of a large job has the memory of a small one",
        target="rljob_operator.policies.pods.gateway:default_resources",
        before="container_bytes(spec)",
        after="(2048 * MIB)",
        tests=(f"{GATEWAY}::test_its_memory_follows_from_the_episodes_that_may_be_open",),
    ),
    Mutant(
        name="a quota on requests refuses the gateway",
        target="rljob_operator.policies.pods.gateway:default_resources",
        before="name in requests",
        after="name in requests and name in limits",
        tests=(f"{GATEWAY}::test_it_has_resources_of_the_kinds_that_the_coordinator_has",),
    ),
    Mutant(
        name="a field of a mount is misspelled",
        target="rljob_operator.policies.pods.gateway:container",
        before='"readOnly": True',
        after='"readonly": True',
        tests=(
            "tests/unit/operator/policies/test_manifest_types.py::test_made_manifests_have_the_declared_fields_only",
        ),
    ),
    Mutant(
        name="a template with a proxy of its own gets ours beside it",
        target="rljob_operator.policies.pods.egress:proxy_variables",
        before="not hosts(environment) or _has_own_proxy(environment)",
        after="not hosts(environment)",
        tests=("tests/unit/operator/policies/pods/test_egress_proxy.py::test_a_template_may_name_another_proxy",),
    ),
    Mutant(
        name="a sidecar's proxy takes ours away from the programs",
        target="rljob_operator.policies.pods.egress:_has_own_proxy",
        before='user_container(environment.template).get("env") or ()',
        after='[one for part in environment.template.spec["containers"] for one in part.get("env") or ()]',
        tests=(
            "tests/unit/operator/policies/pods/test_egress_proxy.py::test_a_sidecars_proxy_is_none_of_the_programs",
        ),
    ),
    Mutant(
        name="clients read a range of IPv6 addresses at which they end",
        target="rljob_operator.policies.pods.egress:_direct_address",
        before="network.version == 6",
        after="False",
        tests=(
            "tests/unit/operator/policies/pods/test_egress_proxy.py"
            "::test_clients_read_the_addresses_that_need_no_proxy",
        ),
    ),
)
