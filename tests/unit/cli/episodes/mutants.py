"""Mutants of rljob_runtime.cli.episodes."""

from hack.mutants import Mutant

PODS = "tests/unit/cli/episodes/test_pods.py"
ROUTE = "tests/unit/entrypoints/test_episode_route.py"

MUTANTS = (
    Mutant(
        name="a table of episodes fetches all tokens",
        target="rljob_runtime.cli.episodes.command:episodes",
        before="tokens=False",
        after="tokens=True",
        tests=(f"{PODS}::test_the_table_needs_no_tokens",),
    ),
    Mutant(
        name="a folder's name hides the job of a namespace",
        target="rljob_runtime.cli.episodes.command:_source",
        before="namespace is None and Path(job).exists()",
        after="Path(job).exists()",
        tests=(f"{PODS}::test_a_namespace_asks_the_cluster_though_there_is_a_folder",),
    ),
    Mutant(
        name="an attempt that was deleted while it was read has a part of its turns",
        target="rljob_runtime.cli.episodes.stored:_complete",
        before='row is None or len(nodes) < row["nodes"]',
        after="row is None",
        tests=(f"{ROUTE}::test_an_attempt_that_is_deleted_while_it_is_read_is_left_out",),
    ),
    Mutant(
        name="a turn above a fork is new in each trajectory",
        target="rljob_runtime.cli.episodes.atif:atif_documents",
        before="told |= {node.id for node in path if node.is_sampled}",
        after="",
        tests=("tests/unit/cli/episodes/test_command.py::test_each_sampled_token_is_in_one_step_that_is_no_copy",),
    ),
    Mutant(
        name="an exported trajectory does not say which tools the model had",
        target="rljob_runtime.cli.episodes.atif:_agent_of",
        before="texts is not None and texts.tools",
        after="False",
        tests=(
            "tests/unit/cli/episodes/test_command.py::test_the_agent_has_the_names_of_the_tools_that_it_was_offered",
        ),
    ),
)
