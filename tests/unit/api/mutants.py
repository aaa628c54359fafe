"""Mutants of rljob_api."""

from hack.mutants import Mutant

PLAN = "tests/unit/operator/policies/test_plan.py"

MUTANTS = (
    Mutant(
        name="a coordinator ends at a field of a later version",
        target="rljob_api.admission.last_accepted:running_job",
        before="_accepted(document, load_known)",
        after="_accepted(document, load)",
        tests=(
            "tests/unit/api/test_last_accepted.py::test_a_running_coordinator_leaves_out_what_a_later_version_added",
        ),
    ),
    Mutant(
        name="unknown fields are accepted",
        target="rljob_api.fields:Model.model_config",
        before='extra="forbid"',
        after='extra="ignore"',
        tests=("tests/unit/api/test_invalid_specs.py",),
        canary=True,
    ),
    Mutant(
        name="what another cluster accepted counts",
        target="rljob_api.admission.last_accepted:was_accepted",
        before='memory.get("uid") == (document.get("metadata") or {}).get("uid")',
        after="True",
        tests=(
            "tests/unit/operator/policies/lifecycle/test_admission.py",
            f"{PLAN}::test_a_refused_edit_is_told_and_nothing_else_changes",
            f"{PLAN}::test_a_pod_lost_during_a_refused_edit_is_replaced",
            "tests/unit/api/test_last_accepted.py",
        ),
    ),
    Mutant(
        name="a reward that an earlier version accepted keeps its former path",
        target="rljob_api.admission.renamed:translated",
        before='reward["function"] = present_path(reward["function"])',
        after="pass",
        tests=("tests/unit/api/test_renamed.py::test_a_stored_spec_is_read_with_the_present_path_of_a_reward",),
    ),
    Mutant(
        name="a job of one size may ask for switches",
        target="rljob_api.rules.layouts:_switches",
        before="adaptive.enabled is True and len(set(allowed or ())) < 2",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="machines switch to sizes of which they have no engines",
        target="rljob_api.rules.layouts:_switches",
        before="size not in allowed",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="rewards may be left out though an environment gives none",
        target="rljob_api.rules.job:_no_rewards",
        before="not environment.gives_reward",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="an environment may lack the field of its kind",
        target="rljob_api.rules.environments:_kind",
        before="environment.kind is kind and value is None",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="a CIDR has bits behind its prefix",
        target="rljob_api.fields:_network",
        before="ipaddress.ip_interface(value).ip != whole.network_address",
    ),
    Mutant(
        name="a reward may be that of an environment that gives none",
        target="rljob_api.rules.environments:_rewards",
        before="len(without) == len(spec.environments)",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="a checkout needs no reset",
        target="rljob_api.rules.environments:_reset",
        before="environment.checkout is not None and reset is not EpisodeReset.GIT_RESTORE",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="an agent may be a command and a function",
        target="rljob_api.rules.environments:_agent",
        before="len(given) > 1",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="episodes may be longer than engines hold",
        target="rljob_api.rules.environments:_limits",
        before="episode.max_tokens > longest",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="the gateway of a job with environments is a stranger's container",
        target="rljob_api.rules.job:check",
        before="role == c.ROLE_COORDINATOR and spec.environments",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="a runner's template is not checked",
        target="rljob_api.rules.environments:check_environments",
        before='yield from check_template(f"{path}.template", c.ROLE_ENVIRONMENT, environment.template, 0, None)',
        after="pass",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="a runner's pod may be told not to start again",
        target="rljob_api.rules.templates:check_template",
        before="_OURS_OF_RUNNERS if role == c.ROLE_ENVIRONMENT else _OURS",
        after="_OURS",
        tests=("tests/unit/api/test_invalid_specs.py",),
    ),
    Mutant(
        name="a runner is told what its template has",
        target="rljob_api.spec.environments:Environment.runner_options",
        before='name not in ("template", "egress", "state")',
        after="True",
        tests=("tests/unit/api/test_models.py::test_a_runner_is_told_about_its_environment_and_not_about_its_pods",),
    ),
    Mutant(
        name="machines switch sizes under episodes",
        target="rljob_api.spec.job:RLJobSpec.switch_sizes",
        before="bool(adaptive.enabled) and not self.environments",
        after="bool(adaptive.enabled)",
        tests=("tests/unit/api/test_models.py::test_what_a_spec_answers",),
    ),
    Mutant(
        name="a bound is written as a number of the machine",
        target="rljob_api.admission.loading:_whole",
        before="value.is_integer()",
        after="False",
        tests=("tests/unit/api/test_invalid_specs.py::test_a_mixture_whose_weights_are_0_is_refused_at_each_source",),
    ),
    Mutant(
        name="a key of another job opens its episode",
        target="rljob_api.keys.signed_text:verify_text",
        before="not hmac.compare_digest(signature, _signature(key, claim))",
        after="len(signature) != 32",
        tests=("tests/unit/gateway/test_capability.py::test_a_capability_of_another_job_opens_nothing",),
    ),
)
