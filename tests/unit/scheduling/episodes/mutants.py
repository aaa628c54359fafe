"""Mutants of rljob_runtime.scheduling.episodes."""

from hack.mutants import Mutant

HISTORIES = "tests/unit/scheduling/episodes/test_histories.py"
TREE = "tests/unit/scheduling/episodes/test_tree.py"
EPISODE = "tests/unit/scheduling/episodes/test_episode.py"
RESPONSES = "tests/unit/scheduling/episodes/test_responses.py"
SEQUENCES = "tests/unit/scheduling/episodes/test_sequences.py"
TIMES = "tests/unit/scheduling/episodes/test_times.py"
TURN_PRIORITY = "tests/unit/scheduling/episodes/test_turn_priority.py"
WEIGHT_LOAD = "tests/unit/scheduling/episodes/test_weight_load.py"

MUTANTS = (
    Mutant(
        name="turns of started episodes wait behind first turns",
        target="rljob_runtime.scheduling.episodes.turn_priority:turn_priority",
        before="stored_turns",
        after="False",
        tests=(
            TURN_PRIORITY,
            "tests/unit/coordinator/episodes/test_book.py"
            "::test_turns_of_started_episodes_go_before_first_turns_the_older_episode_first",
        ),
    ),
    Mutant(
        name="the parts of an attempt overlap where turns run concurrently",
        target="rljob_runtime.scheduling.episodes.times:attempt_parts",
        before="max(span.opened, reached)",
        after="span.opened",
        tests=(f"{TIMES}::test_the_parts_of_an_attempt_follow_one_another_and_have_its_seconds",),
    ),
    Mutant(
        name="samples of a long round are not bounded",
        target="rljob_runtime.scheduling.episodes.levels:Levels.add",
        before="samples[::2]",
        after="samples",
        tests=("tests/unit/scheduling/episodes/test_levels.py",),
    ),
    Mutant(
        name="a runner claims an attempt of another environment",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.may_have",
        before="self._environments[attempt] != environment",
        after="False",
        tests=("tests/unit/scheduling/episodes/test_runners.py::test_no_runner_of_another_environment_has_an_attempt",),
    ),
    Mutant(
        name="a call without a state is executed again",
        target="rljob_runtime.scheduling.episodes.resumption:ToolJournal.take",
        before="self.recovery is not Recovery.REPLAY",
        after="False",
        tests=("tests/unit/scheduling/episodes/test_resumption.py",),
    ),
    Mutant(
        name="a replay goes on from other answers",
        target="rljob_runtime.scheduling.episodes.resumption:ToolJournal.take",
        before="known.digest != digest",
        after="False",
        tests=("tests/unit/scheduling/episodes/test_resumption.py",),
    ),
    Mutant(
        name="a runner that leaves out a part of the replay goes on",
        target="rljob_runtime.scheduling.episodes.resumption:ToolJournal.take",
        before="any(one.resumption < resumption for one in self._calls.values())",
        after="False",
        tests=("tests/unit/scheduling/episodes/test_resumption.py",),
    ),
    Mutant(
        name="an attempt whose calls are not known goes on",
        target="rljob_runtime.scheduling.episodes.resumption:may_resume",
        before="lost.journals",
        after="True",
        tests=("tests/unit/scheduling/episodes/test_resumption.py",),
    ),
    Mutant(
        name="an episode that a runner has is not open",
        target="rljob_runtime.scheduling.episodes.runner_loads:RunnerLoads.take",
        before="{name: count for name, count in self._open.items() if count}",
        after="{}",
        tests=("tests/unit/scheduling/episodes/test_runner_loads.py",),
    ),
    Mutant(
        name="a response is of its newest version",
        target="rljob_runtime.scheduling.episodes.responses:_response_of",
        before="min(node.version for node in nodes if node.version is not None)",
        after="max(node.version for node in nodes if node.version is not None)",
        tests=("tests/simulation/test_episodes.py::test_turns_of_newer_weights_happen_where_versions_are_mixed",),
    ),
    Mutant(
        name="a load interrupts a turn each time",
        target="rljob_runtime.scheduling.episodes.weight_load:seconds_to_wait",
        before="any(one.interrupted for one in running)",
        after="False",
        tests=(f"{WEIGHT_LOAD}::test_a_turn_is_interrupted_once",),
    ),
    Mutant(
        name="turns that cannot begin wait for the slowest open turn",
        target="rljob_runtime.scheduling.episodes.weight_load:seconds_to_wait",
        before="0.0 if gap <= 0 else gap / closing if closing > 0 else inf",
        after="inf",
        tests=(f"{WEIGHT_LOAD}::test_a_load_waits_until_waiting_costs_as_much_as_interruption",),
    ),
    Mutant(
        name="seconds of concurrent turns are counted twice",
        target="rljob_runtime.scheduling.episodes.times:attempt_times",
        before="max(span.opened, reached)",
        after="span.opened",
        tests=(TIMES,),
    ),
    Mutant(
        name="a rewritten history goes on after the recorded one",
        target="rljob_runtime.scheduling.episodes.tree:TokenTree.attach",
        before="deepest = self._found.get(path.digest(), deepest)",
        after="deepest = self._found.get(path.digest(), next(n for n in self._lengths if self._lengths[n] == end))",
        tests=(HISTORIES,),
    ),
    Mutant(
        name="a request attaches to the first node that it begins with",
        target="rljob_runtime.scheduling.episodes.tree:TokenTree.attach",
        before="self._found.get(path.digest(), deepest)",
        after="deepest or self._found.get(path.digest(), deepest)",
        tests=(TREE,),
    ),
    Mutant(
        name="a request is digested from its beginning for each node",
        target="rljob_runtime.scheduling.episodes.tree:TokenTree.attach",
        before="self.work.lookups += 1",
        after="self.work.lookups += 1; self.work.tokens += end",
        tests=(f"{TREE}::test_a_request_costs_its_own_tokens_whatever_the_turns_and_forks",),
    ),
    Mutant(
        name="each node is looked up, also where paths have equal lengths",
        target="rljob_runtime.scheduling.episodes.tree:TokenTree.add",
        before="not place or self._ends[place - 1] != length",
        after="True",
        tests=(f"{TREE}::test_a_request_costs_its_own_tokens_whatever_the_turns_and_forks",),
    ),
    Mutant(
        name="of equal paths the one that was added first is found",
        target="rljob_runtime.scheduling.episodes.tree:TokenTree.add",
        before="min(known, node.id)",
        after="known",
        tests=(f"{TREE}::test_of_equal_paths_it_is_the_same_before_and_after_a_restart",),
    ),
    Mutant(
        name="a turn that was cut is extended",
        target="rljob_runtime.scheduling.episodes.node:Node.is_cut",
        before="self.finish is FinishReason.LENGTH",
        after="False",
        tests=(f"{EPISODE}::test_a_turn_that_was_cut_is_never_extended",),
    ),
    Mutant(
        name="a retry is sampled twice",
        target="rljob_runtime.scheduling.episodes.episode:Episode.open",
        before="request.retry and (former := self._former(request.digest)) is not None",
        after="request.retry and (former := self._former(request.digest)) is not None and self.end is not None",
        tests=(HISTORIES,),
    ),
    Mutant(
        name="a concurrent request with equal tokens gets the answer of the other",
        target="rljob_runtime.scheduling.episodes.episode:Episode.open",
        before="request.retry and (former := self._former(request.digest)) is not None",
        after="(former := self._former(request.digest)) is not None",
        tests=(HISTORIES,),
    ),
    Mutant(
        name="a retry of a dropped turn waits for it",
        target="rljob_runtime.scheduling.episodes.episode:Episode.drop",
        before="self._close(turn)",
        after="",
        tests=(EPISODE,),
    ),
    Mutant(
        name="a late result extends the tree",
        target="rljob_runtime.scheduling.episodes.episode:Episode._end",
        before="self._open.clear()",
        after="",
        tests=(f"{EPISODE}::test_results_that_come_late_or_twice_change_nothing",),
    ),
    Mutant(
        name="a restarted process uses the id of a lost turn again",
        target="rljob_runtime.scheduling.episodes.episode:Episode.__init__",
        before="max(last_id, *self._tree.nodes, ROOT)",
        after="max(self._tree.nodes, default=ROOT)",
        tests=(HISTORIES,),
    ),
    Mutant(
        name="the given tokens of a concurrent request are not stored with its turn",
        target="rljob_runtime.scheduling.episodes.episode:Episode._take_unstored",
        before="node in self._unstored",
        after="node in self._unstored and not found",
        tests=(EPISODE,),
    ),
    Mutant(
        name="several versions generate an episode of a single one",
        target="rljob_runtime.scheduling.episodes.episode:Episode._version_of_turn",
        before="return self._version",
        after="return offered",
        tests=(f"{EPISODE}::test_a_single_version_is_that_of_the_first_turn",),
    ),
    Mutant(
        name="staleness counts from the newest version",
        target="rljob_runtime.scheduling.episodes.episode:Episode.oldest_version",
        before="min((node.version for node in self.nodes.values() if node.version is not None), default=None)",
        after="max((node.version for node in self.nodes.values() if node.version is not None), default=None)",
        tests=(f"{EPISODE}::test_several_versions_are_each_turns_own_and_the_oldest_counts",),
    ),
    Mutant(
        name="a concurrent turn is no fork",
        target="rljob_runtime.scheduling.episodes.episode:Episode._open_turn",
        before="bool(self._tree.children(place.node) or self._open_below.get(place.node))",
        after="bool(self._tree.children(place.node))",
        tests=(f"{EPISODE}::test_concurrent_requests_are_siblings_and_their_given_node_is_stored_once",),
    ),
    Mutant(
        name="an agent that never calls the model completes",
        target="rljob_runtime.scheduling.episodes.episode:Episode.complete",
        before="not self.sampled",
        after="False",
        tests=(f"{EPISODE}::test_an_agent_that_never_calls_the_model_is_aborted",),
    ),
    Mutant(
        name="all leaves train on the turns that they share",
        target="rljob_runtime.scheduling.episodes.sequences:training_sequences",
        before="node.is_sampled and node.id not in trained",
        after="node.is_sampled",
        tests=(HISTORIES,),
    ),
    Mutant(
        name="given tokens are in the loss",
        target="rljob_runtime.scheduling.episodes.sequences:TrainingSequence.loss_mask",
        before="[False] * given",
        after="[True] * given",
        tests=(SEQUENCES,),
    ),
    Mutant(
        name="a turn is trained on without what was given before it",
        target="rljob_runtime.scheduling.episodes.sequences:training_sequences",
        before="given += node.token_ids",
        after="given = list(node.token_ids)",
        tests=(HISTORIES,),
    ),
    Mutant(
        name="a failure of ours is trained on",
        target="rljob_runtime.scheduling.episodes.responses:group_of",
        before="one.episode.end is None or one.episode.end.state is EndState.ABORTED",
        after="False",
        tests=(f"{RESPONSES}::test_a_failure_of_ours_is_not_trained_on",),
    ),
    Mutant(
        name="runners hand back without end",
        target="rljob_runtime.scheduling.episodes.ends:counts_as_failure",
        before="hand_backs > MOST_HAND_BACKS",
        after="False",
        tests=(
            "tests/unit/coordinator/episodes/test_book.py::test_an_attempt_that_its_runner_hands_back_is_no_failure_until_there_are_many",
        ),
    ),
    Mutant(
        name="one of several runners takes all attempts",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.take",
        before="math.ceil(len(waiting) / max(1, runners))",
        after="len(waiting)",
        tests=(
            "tests/unit/scheduling/episodes/test_runners.py::test_each_of_several_runners_takes_its_part_of_what_waits",
        ),
    ),
    Mutant(
        name="an attempt on its way to a runner is silent",
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.lapsed",
        before="held.begun and now - held.heard > self._patience",
        after="now - held.heard > self._patience",
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
        target="rljob_runtime.scheduling.episodes.runners:RunnerLeases.hand_over",
        before="self._waiting[environment].move_to_end(successor, last=False)",
        after="pass",
        tests=("tests/unit/scheduling/episodes/test_runners.py",),
    ),
    Mutant(
        name="given tokens of a turn that was dropped count",
        target="rljob_runtime.scheduling.episodes.counts:episode_counts",
        before="[nodes[one] for one in counted]",
        after="[nodes[one] for one in nodes]",
        tests=("tests/unit/scheduling/episodes/test_counts.py",),
    ),
    Mutant(
        name="forks are never told",
        target="rljob_runtime.scheduling.episodes.forks:told_forks",
        before="forks <= LARGEST_SHARE * turns",
        after="forks <= turns",
        tests=("tests/unit/coordinator/episodes/test_metrics.py::test_forks_are_told_above_their_share",),
    ),
)
