"""Mutants of rljob_runtime.coordinator.episodes: where two calls meet."""

from hack.mutants import Mutant

BOOK = "tests/unit/coordinator/episodes/test_book.py"
RACES = "tests/unit/coordinator/episodes/test_races.py"
EPISODES = "rljob_runtime.coordinator.episodes"

MUTANTS = (
    Mutant(
        name="attempts that are not needed end in the order of a set",
        target=f"{EPISODES}.book:EpisodeBook.drop",
        before="sorted(prompts)",
        after="prompts",
        tests=(f"{BOOK}::test_attempts_end_in_the_order_of_their_prompts[drop]",),
    ),
    Mutant(
        name="attempts that are cut end in the order of a set",
        target=f"{EPISODES}.book:EpisodeBook.cut",
        before="sorted(prompts)",
        after="prompts",
        tests=(f"{BOOK}::test_attempts_end_in_the_order_of_their_prompts[cut]",),
    ),
    Mutant(
        name="an attempt is open until its end is stored",
        target=f"{EPISODES}.unwritten:UnwrittenChanges._watch",
        before="set(self._ending)",
        after="set[int]()",
        tests=(f"{RACES}::test_an_attempt_is_not_found_open_before_its_end_is_stored",),
    ),
    Mutant(
        name="a read does not learn of ends meanwhile",
        target=f"{EPISODES}.unwritten:UnwrittenChanges.end",
        before="one.ended.add(number)",
        after="pass",
        tests=(f"{RACES}::test_an_attempt_that_ended_while_the_store_was_read_is_not_found_open",),
    ),
    Mutant(
        name="an attempt that begins is read as one of a former coordinator",
        target=f"{EPISODES}.unwritten:UnwrittenChanges.is_outdated",
        before="kept.key in one.keys",
        after="False",
        tests=(f"{RACES}::test_a_late_call_of_a_former_attempt_does_not_end_the_new_one",),
    ),
    Mutant(
        name="a retry of a turn that is not stored finds no answer",
        target=f"{EPISODES}.turn_service:TurnService.turn",
        before="(unstored := attempt.unstored.get(node.id)) is not None",
        after="(unstored := None)",
        tests=(f"{RACES}::test_a_retry_of_a_turn_that_is_complete_but_not_stored_waits_for_it",),
    ),
    Mutant(
        name="a response that is dropped while it is read is begun",
        target=f"{EPISODES}.book:EpisodeBook.take",
        before="request.key not in read.needed",
        after="False",
        tests=(f"{RACES}::test_a_response_that_is_dropped_while_it_is_launched_is_not_begun",),
    ),
    Mutant(
        name="a response that is dropped while it begins stays",
        target=f"{EPISODES}.book:EpisodeBook._begin",
        before="request.key not in begins.needed",
        after="False",
        tests=(f"{RACES}::test_a_response_that_is_dropped_while_it_is_launched_is_not_begun",),
    ),
    Mutant(
        name="an attempt that is dropped while it is read stays open",
        target=f"{EPISODES}.book:EpisodeBook.load",
        before="kept.key not in (pending.known if attempt.ended else pending.needed)",
        after="False",
        tests=(f"{RACES}::test_a_former_coordinators_attempt_dropped_during_its_read_ends",),
    ),
    Mutant(
        name="a cut of a response that is read loses its end",
        target=f"{EPISODES}.book:EpisodeBook.load",
        before="(pending.known if attempt.ended else pending.needed)",
        after="pending.needed",
        tests=(f"{RACES}::test_a_cut_keeps_an_ended_attempt_that_is_read",),
    ),
    Mutant(
        name="an older launch that begins late replaces a newer one",
        target=f"{EPISODES}.book:EpisodeBook._begin",
        before="_is_later(self._of(request.key), request)",
        after="False",
        tests=(f"{RACES}::test_an_older_launch_that_begins_late_does_not_replace_a_newer_one",),
    ),
    Mutant(
        name="an older launch that still reads takes over from a newer one",
        target=f"{EPISODES}.book:EpisodeBook.take",
        before="_is_later(known, request)",
        after="False",
        tests=(f"{RACES}::test_an_older_launch_that_still_reads_replaces_no_newer_one",),
    ),
    Mutant(
        name="a cut says nothing of launches under way",
        target=f"{EPISODES}.book:EpisodeBook.cut",
        before="self._unwritten.cut(prompts)",
        after="pass",
        tests=(f"{RACES}::test_a_response_that_is_dropped_while_it_is_launched_is_not_begun",),
    ),
    Mutant(
        name="a response that is stopped while it is launched is generated",
        target=f"{EPISODES}.replica:EpisodeReplica.abort",
        before="self._stop_arriving(key, lease)",
        after="pass",
        tests=(f"{RACES}::test_a_response_stopped_during_launch_waits_for_another_replica",),
    ),
    Mutant(
        name="a stop ends a later launch",
        target=f"{EPISODES}.replica:EpisodeReplica._stop_arriving",
        before="self._arriving.get(key, lease + 1) <= lease",
        after="key in self._arriving",
        tests=(f"{RACES}::test_a_stop_of_an_earlier_launch_leaves_the_one_that_arrives",),
    ),
    Mutant(
        name="two calls restore one attempt twice",
        target=f"{EPISODES}.book:EpisodeBook.load",
        before="self._of(kept.key) is not None",
        after="False",
        tests=(f"{RACES}::test_concurrent_calls_adopt_a_former_coordinators_attempt_once",),
    ),
    Mutant(
        name="a turn that arrives while the end is stored is answered",
        target=f"{EPISODES}.turn_service:TurnService.receive",
        before="attempt is None or attempt.episode.end is not None",
        after="attempt is None",
        tests=(f"{RACES}::test_a_turn_that_arrives_while_the_end_is_stored_is_no_answer",),
    ),
    Mutant(
        name="a lease whose runner left lapses",
        target=f"{EPISODES}.runner_service:RunnerService._assignments",
        before="self._leases.give_back(one, self._now())",
        after="False",
        tests=(f"{RACES}::test_a_lease_whose_runner_leaves_goes_to_the_next_one",),
    ),
    Mutant(
        name="a deadline while no engine generates is the policy's doing",
        target=f"{EPISODES}.runner_service:RunnerService.done",
        before="attempt.waits_for_engine",
        after="False",
        tests=(f"{RACES}::test_a_harness_ending_while_no_engine_runs_its_turn_has_no_reward",),
    ),
    Mutant(
        name="a lost replica counts as one that generates",
        target=f"{EPISODES}.replica:EpisodeReplica.generates",
        before="self._polls > 0",
        after="True",
        tests=(f"{RACES}::test_a_harness_ending_while_no_engine_runs_its_turn_has_no_reward",),
    ),
    Mutant(
        name="a replica keeps attempts that are over there",
        target=f"{EPISODES}.replica:EpisodeReplica.stop",
        before="self._forget(attempt)",
        after="",
        tests=(f"{RACES}::test_a_replica_forgets_an_attempt_that_is_over_here",),
    ),
    Mutant(
        name="a report that comes again before it is stored is refused",
        target=f"{EPISODES}.runner_service:RunnerService.done",
        before="known is not None and known.id == episode and known.reporter == runner",
        after="known is not None and known.ended and known.reporter == runner",
        tests=(f"{RACES}::test_a_report_that_comes_again_while_it_is_stored_has_the_same_answer",),
    ),
)
