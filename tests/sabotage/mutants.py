"""The sabotages: each is one line of the real code made wrong, and the tests that must go red over it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`line` must stand exactly once in `file`; it is replaced by `sabotage`, and `tests` (for pytest) must fail."""

    name: str
    file: str
    line: str
    sabotage: str
    tests: tuple[str, ...]


API = "crds/rljob_api"
OPERATOR = "operator/rljob_operator"
RUNTIME = "runtime/rljob_runtime"

GRADIENT = (
    "tests/training/test_training_exactness.py::test_any_split_gives_the_gradient_of_the_naive_implementation"
    "[3-no std, tight clip-float64]",
)
IMPORTANCE = "tests/training/test_training_importance.py"
WEIGHED = (
    "tests/training/test_training_exactness.py::test_any_split_gives_the_gradient_of_the_naive_implementation"
    "[3-weighed-float64]"
)
EARLY = ("tests/training/test_training_early.py",)
LENT = "tests/training/test_training_lent.py"
LOANS = "tests/coordinator/test_coordinator_loans.py"
LANE = "tests/coordinator/test_coordinator_lane.py"
LOAN_GAIN = "tests/coordinator/test_coordinator_loan_gain.py"
LOST_STORE = "tests/coordinator/test_coordinator_lost_store.py"
CHECKPOINTS = (
    "tests/training/test_training_checkpoint.py::test_an_unfinished_one_does_not_count",
    "tests/training/test_training_checkpoint.py::test_an_unfinished_one_alone_is_no_reason_to_stop",
    "tests/training/test_training_checkpoint.py::test_a_damaged_one_is_passed_over_and_can_be_written_again",
)
WORKLOADS = "tests/workloads/test_workloads_generators.py"
LAYOUTS = "tests/coordinator/test_coordinator_layouts.py"
SEAT = "tests/rollout/test_rollout_layouts.py"
ESCAPES = "tests/rewards/test_rewards_escapes.py"
TRAINER_SEAT = "tests/coordinator/test_coordinator_trainer_seat.py"
COMINGS = "tests/coordinator/test_coordinator_comings_and_goings.py"
SEEDS = "tests/simulation/test_simulation_runs.py::test_seeds_hold_every_invariant"
BENCHMARKS = "tests/simulation/test_simulation_benchmarks.py"
PROFILE = "tests/rollout/test_rollout_profile.py"
REPLAY = "tests/coordinator/test_coordinator_replay.py"
SCHEDULING = ("tests/coordinator/test_coordinator_scheduling.py",)
ROUNDS = (
    "tests/coordinator/test_coordinator_rounds.py::test_a_job_runs_to_its_end",
    "tests/coordinator/test_coordinator_rounds.py::test_a_failed_reward_is_no_zero_and_is_tried_again",
)
STORE = ("tests/coordinator/test_coordinator_store.py",)
MIGRATIONS = "tests/coordinator/test_coordinator_store_migrations.py"
RACE = ("tests/coordinator/test_coordinator_race.py",)
TAIL = "tests/coordinator/test_coordinator_tail_batching.py"
EXPERIENCE = ("tests/coordinator/test_coordinator_experience.py",)
REPACK = ("tests/coordinator/test_coordinator_repack.py",)
WHAT_IF = "tests/coordinator/test_coordinator_what_if.py"
FORECAST = "tests/coordinator/test_coordinator_forecast.py"
NEXT_ROUND = (
    f"{TAIL}::test_the_next_round",
    f"{TAIL}::test_a_job_trains_on_the_prompts_that_plain_rounds_would_take_each_once",
)
INLET = "tests/relay/test_relay_inlet.py"
WIRE = "tests/relay/test_relay_wire.py"
FENCES = ("tests/relay/test_relay_wire.py::test_exactly_the_lower_is_refused_and_the_higher_adopted",)
SEGMENT = (
    "tests/relay/test_relay_segment.py::test_a_draft_is_not_committed_before_every_chunk_is_verified",
    "tests/relay/test_relay_segment.py::test_a_chunk_with_another_checksum_is_not_accepted",
    "tests/relay/test_relay_segment.py::test_versions_only_rise",
)
REPLICA = (
    "tests/rollout/test_rollout_replica.py::test_an_older_term_is_refused_by_every_command",
    "tests/rollout/test_rollout_replica.py::test_repeated_and_late_attempts_generate_nothing",
    "tests/rollout/test_rollout_replica.py::test_a_load_that_the_relay_cannot_serve_keeps_the_old_version",
)
VLLM = (
    "tests/rollout/test_rollout_contract.py::test_loaded_weights_are_the_trainers[VLLM]",
    "tests/rollout/test_rollout_contract.py::test_logprobs_are_the_trainers_at_the_same_temperature[VLLM-0.7]",
)
ENGINE_MODEL = (
    "tests/enginemodel/test_enginemodel_engine.py::test_the_event_model_is_the_stepwise_engine",
    "tests/enginemodel/test_enginemodel_engine.py::"
    "test_the_youngest_is_preempted_goes_first_in_the_queue_and_is_computed_anew",
)
POLICIES = ("tests/operator/test_operator_policies.py",)
PARALLELISM = ("tests/operator/test_operator_parallelism.py",)
PLAN = (
    "tests/operator/test_operator_plan.py::test_a_status_is_written_when_it_differs",
    "tests/operator/test_operator_plan.py::test_a_lost_pods_name_is_not_used_again",
    "tests/operator/test_operator_plan.py::test_a_fresh_operator_keeps_the_pause_after_failures",
    "tests/operator/test_operator_plan.py::test_what_is_complete_stays_complete",
)
EDITS = (
    "tests/operator/test_operator_admission.py",
    "tests/operator/test_operator_plan.py::test_a_refused_edit_is_told_and_nothing_else_changes",
    "tests/operator/test_operator_plan.py::test_a_pod_lost_during_a_refused_edit_is_replaced",
    "tests/api/test_api_accepted.py",
)
FOLLOWING = (
    "tests/coordinator/test_coordinator_kubernetes.py::test_a_spec_is_followed_once_the_operator_has_accepted_it",
)
DELETIONS = (
    "tests/operator/test_operator_parts.py::"
    "test_a_pod_is_deleted_by_the_leader_and_only_if_it_is_the_one_that_was_judged",
)
CEL = ("tests/api/test_api_cel.py::test_the_server_refuses_what_it_can_see",)
INVALID = ("tests/api/test_api_invalid.py",)

MUTANTS: tuple[Mutant, ...] = (
    # --- what the job decides by itself ---
    Mutant(
        "stopped responses count as finished",
        f"{RUNTIME}/scheduling/lengths.py",
        "length = response.tokens if response.ended else self._survival.beyond(response.tokens, share)",
        "length = response.tokens",
        (f"{WHAT_IF}::test_the_tail_is_seen_through_a_race",),
    ),
    Mutant(
        "long rounds are not charged",
        f"{RUNTIME}/scheduling/what_if.py",
        "total = plain_rounds * plain + short_rounds * short + long_rounds * (long or plain)",
        "total = plain_rounds * plain + (short_rounds + long_rounds) * (short or plain)",
        (f"{WHAT_IF}::test_long_rounds_are_charged",),
    ),
    Mutant(
        "a decision may cost any number of events",
        f"{RUNTIME}/scheduling/what_if.py",
        "        left = self._most_events - self.events",
        "        left = 1 << 40",
        (f"{WHAT_IF}::test_a_decision_costs_no_more_where_prompts_are_filtered_or_engines_preempt",),
    ),
    Mutant(
        "what ended at a former limit has ended",
        f"{RUNTIME}/coordinator/store_history.py",
        "finish IS NOT NULL AND (finish != ? OR tokens >= ?) FROM",
        "finish IS NOT NULL AND (finish != ? OR tokens >= ? OR 1) FROM",
        (f"{FORECAST}::test_what_ended_at_a_limit_that_was_raised_since_counts_as_stopped",),
    ),
    Mutant(
        "a round that nothing explains changes no belief",
        f"{RUNTIME}/coordinator/store_history.py",
        "    since = believed_since(predicted.fetchall())",
        "    since = 0",
        (f"{FORECAST}::test_after_a_round_that_nothing_explains_only_lengths_since_then_are_believed",),
    ),
    Mutant(
        "replicas are those that had something to do",
        f"{RUNTIME}/coordinator/engine_watch.py",
        "        self._replicas = max(self._replicas, replicas)",
        "        self._replicas = max(self._replicas, len(requests))",
        (f"{FORECAST}::test_a_round_that_was_taken_up_near_its_end_counts_all_replicas",),
    ),
    Mutant(
        "the slow-down of streaming is forgotten",
        f"{RUNTIME}/coordinator/store_history.py",
        "    return tuple(Speed.from_json(text) for (text,) in reversed(rows))",
        "    return () if stream else tuple(Speed.from_json(text) for (text,) in reversed(rows))",
        (f"{FORECAST}::test_how_engines_do_beside_a_computing_trainer_is_known_however_long_ago_it_was_seen",),
    ),
    Mutant(
        "lengths of before the limit was lowered are believed",
        f"{RUNTIME}/scheduling/lengths.py",
        "        return min(self._limit, max(1, length))",
        "        return max(1, length)",
        (f"{WHAT_IF}::test_no_response_is_longer_than_the_present_limit",),
    ),
    Mutant(
        "a round that was decided is decided again",
        f"{RUNTIME}/coordinator/store.py",
        "found = OpenRound(plan, Cursor(epoch, position), {}, {}, {}, assigned, Chosen.from_json(chosen))",
        "found = OpenRound(plan, Cursor(epoch, position), {}, {}, {}, assigned)",
        (f"{FORECAST}::test_another_coordinator_plays_the_round_as_it_was_decided",),
    ),
    # --- the update is the one of the papers ---
    Mutant(
        "half of the tokens are counted",
        f"{RUNTIME}/training/contribution.py",
        "gradient.div_(count)",
        "gradient.div_(count / 2)",
        GRADIENT,
    ),
    Mutant(
        "early sums are kept for the next step",
        f"{RUNTIME}/training/learner.py",
        "early, self._early = self._early_of(step), None",
        "early = self._early",
        EARLY,
    ),
    Mutant(
        "a contribution is counted twice",
        f"{RUNTIME}/training/early.py",
        "return {prompt: block for prompt, block in blocks.items() if prompt not in self.blocks}",
        "return dict(blocks)",
        EARLY,
    ),
    Mutant(
        "early sums are used although a group is not trained on",
        f"{RUNTIME}/training/early.py",
        "return self.blocks.keys() <= blocks.keys() and self.agrees_with(blocks)",
        "return self.agrees_with(blocks)",
        EARLY,
    ),
    Mutant(
        "only the groups that came late are in the divisor",
        f"{RUNTIME}/training/contribution.py",
        "sums = sums + other.sums",
        "sums = other.sums",
        EARLY,
    ),
    Mutant(
        "overlapping contributions are added",
        f"{RUNTIME}/training/contribution.py",
        "if twice := groups & other.groups:",
        "if twice := groups - groups:",
        (f"{LENT}::test_what_does_not_belong_here_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "a worker's count of tokens is believed",
        f"{RUNTIME}/training/learner.py",
        "if has != wanted:",
        "if not has:",
        (f"{LENT}::test_what_does_not_belong_here_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "the last winner of a race stands for all that were stopped with it",
        f"{RUNTIME}/scheduling/survival.py",
        "cuts[length + length // HEAD_START] += count",
        "cuts[length] += count",
        (f"{TAIL}::test_the_last_winner_of_a_race_tells_nothing_of_those_that_were_stopped_with_it",),
    ),
    Mutant(
        "a look at pods may be older than those just made",
        f"{OPERATOR}/act.py",
        "self._saw([await self._kube.create(POD, creation.manifest)])",
        "await self._kube.create(POD, creation.manifest)",
        ("tests/operator/test_operator_parts.py::test_no_look_at_pods_is_older_than_those_it_made_itself",),
    ),
    Mutant(
        "a first round believes that its short responses are all there is",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "if trainer is None or lent is None or speed is None or not measured.lengths:",
        "if trainer is None or lent is None or speed is None:",
        (f"{LOAN_GAIN}::test_without_measurements_nothing_is_predicted",),
    ),
    Mutant(
        "Auto lends nothing",
        f"{RUNTIME}/coordinator/settings.py",
        "if not any(plan.stream for plan in _choices(spec).plans):",
        "if stream.enabled is not True:",
        (f"{LOANS}::test_machines_are_lent_where_rounds_may_stream",),
    ),
    Mutant(
        "a round that does not stream lends machines",
        f"{RUNTIME}/coordinator/rounds.py",
        "rules = self._parts.settings.lending if streams else None",
        "rules = self._parts.settings.lending",
        (f"{LOANS}::test_where_auto_streams_it_lends_and_nowhere_else",),
    ),
    Mutant(
        "why nothing is lent is not told",
        f"{RUNTIME}/coordinator/lender.py",
        "Decision(rules if isinstance(rules, Verdict) else Verdict.NOT_NOW) if rules else None",
        "None",
        (f"{LOANS}::test_the_round_tells_why_nothing_is_lent",),
    ),
    Mutant(
        "the slow-down of streaming is measured beside lent machines",
        f"{RUNTIME}/coordinator/engine_watch.py",
        "self._lent = True",
        "pass",
        (f"{LOANS}::test_what_engines_did_beside_lent_machines_is_kept_apart",),
    ),
    Mutant(
        "an update's cost is learned where lent machines did the work",
        f"{RUNTIME}/coordinator/store_history.py",
        "updated = tuple(one for one in rounds if not one.report.lent_machines) or _last_without_loan(",
        "updated = tuple(one for one in rounds) or _last_without_loan(",
        (f"{FORECAST}::test_what_an_update_costs_is_not_learned_from_rounds_in_which_machines_were_lent",),
    ),
    Mutant(
        "a loan knows nothing of responses that were stopped",
        f"{RUNTIME}/scheduling/survival.py",
        "return cls((one.tokens for one in seen if one.ended), (one.tokens for one in seen if not one.ended))",
        "return cls(one.tokens for one in seen if one.ended)",
        ("tests/coordinator/test_coordinator_lending.py::test_what_was_stopped_or_still_runs_is_longer_than_it_is",),
    ),
    Mutant(
        "sums of other weights are taken",
        f"{RUNTIME}/training/handover.py",
        "if published != (handover.version, done):",
        "if published is None:",
        (f"{LENT}::test_what_does_not_belong_here_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "a worker computes with stale weights",
        f"{RUNTIME}/training/lent.py",
        "if self._computer is not None and self._loaded == version:",
        "if self._computer is not None:",
        (f"{LENT}::test_a_worker_computes_with_the_version_it_is_told",),
    ),
    Mutant(
        "what lost its race is expected to run on",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "engines[other].abort(place, now)",
        "pass",
        (f"{LOAN_GAIN}::test_what_lost_its_race_slows_nobody_down",),
    ),
    Mutant(
        "what still runs is expected to end at the mean",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "total = lengths.at(response.generated, response.share)",
        "total = round(lengths.of(response.generated))",
        (f"{LOAN_GAIN}::test_the_gain", f"{LOAN_GAIN}::test_the_race_is_that_of_the_plain_formula"),
    ),
    Mutant(
        "a loan is predicted to train on every group",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "while len(arrivals) < wanted and due:",
        "while due:",
        (f"{LOAN_GAIN}::test_the_gain", f"{LOAN_GAIN}::test_the_race_is_that_of_the_plain_formula"),
    ),
    Mutant(
        "larger batches than any seen are believed in",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "seen = min(max(running, self.least), self.most)",
        "seen = running",
        (f"{LOAN_GAIN}::test_outside_of_the_batches_that_were_seen_tokens_come_as_fast_as_at_the_nearest",),
    ),
    Mutant(
        "a machine that is called back counts as slow",
        f"{RUNTIME}/coordinator/lane.py",
        "groups, self._groups, self._summed = self._groups, [], 0",
        "self.note_slow(); groups, self._groups, self._summed = self._groups, [], 0",
        (f"{LANE}::test_a_machine_that_is_called_back_was_not_slow",),
    ),
    Mutant(
        "nobody tells a machine that its loan is over",
        f"{RUNTIME}/coordinator/lane.py",
        "self._owner.aside(self._machine.end_loan(self._term))",
        "pass",
        (f"{LANE}::test_whoever_is_lent_no_more_is_told_and_nobody_waits_for_it",),
    ),
    Mutant(
        "a worker computes before the seats have made room",
        f"{RUNTIME}/coordinator/lane.py",
        "await self._call(self._machine.make_room(self._term))",
        "pass",
        (
            f"{LOANS}::test_all_seats_of_a_lent_machine_make_room_and_come_back_with_the_next_weights",
            f"{LANE}::test_to_make_room_and_to_come_back_is_part_of_its_first_computation",
        ),
    ),
    Mutant(
        "seats are laid out while the worker holds the memory",
        f"{RUNTIME}/coordinator/layouts.py",
        "await vacate(machine, self._term)",
        "pass",
        (f"{LOANS}::test_a_coordinator_that_comes_back_has_workers_let_go_before_it_lays_seats_out",),
    ),
    Mutant(
        "a lent machine is laid out when a newcomer is fed",
        f"{RUNTIME}/coordinator/fleet.py",
        "if machine.lent:",
        "if False:",
        (f"{LOANS}::test_a_newcomer_is_fed_while_a_machine_is_lent_and_the_loan_goes_on",),
    ),
    Mutant(
        "a machine that is called back is not fed",
        f"{RUNTIME}/coordinator/fleet.py",
        "if again and machine.loaded is None:",
        "if False:",
        (f"{LOANS}::test_a_machine_that_is_called_back_generates_again_on_its_accelerators",),
    ),
    Mutant(
        "nobody notices that an idle lane is lost",
        f"{RUNTIME}/coordinator/streaming.py",
        'lane.watch(partial(self._give_up, lane, "its machine left"))',
        "pass",
        (f"{LANE}::test_an_idle_lanes_loss_is_noticed_and_its_groups_go_to_those_who_are_left",),
    ),
    Mutant(
        "a call takes all there is",
        f"{RUNTIME}/coordinator/streaming.py",
        "count = max(1, sum(tokens <= most for tokens in sums))",
        "count = len(sums)",
        (
            "tests/coordinator/test_coordinator_streaming.py::test_calls_are_bounded_and_one_at_a_time",
            f"{LANE}::test_a_machine_that_is_lent_is_asked_for_no_more_than_a_call_should_take",
        ),
    ),
    Mutant(
        "sums are waited for for ever",
        f"{RUNTIME}/coordinator/streaming.py",
        "async with asyncio.timeout_at(until):",
        "async with asyncio.timeout_at(None):",
        (f"{LANE}::test_sums_that_do_not_come_are_waited_for_no_longer_than_the_trainer_would_take",),
    ),
    Mutant(
        "machines are lent to a trainer that takes nothing",
        f"{RUNTIME}/coordinator/streaming.py",
        "return not self._broken and self._trainer.published == self._version",
        "return True",
        (f"{LANE}::test_no_machine_is_lent_that_the_trainer_would_take_nothing_from",),
    ),
    Mutant(
        "a new trainer publishes nothing within a round",
        f"{RUNTIME}/coordinator/publication.py",
        "anew = self._trainer.published != version",
        "anew = False",
        (f"{LOANS}::test_a_trainer_that_was_replaced_within_a_round_takes_what_is_summed_for_it",),
    ),
    Mutant(
        "what was computed before counts as speed",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "if units > 0:",
        "if seconds:",
        (
            f"{LOAN_GAIN}::test_nothing_done_tells_nothing_of_a_speed",
            f"{LANE}::test_a_repetition_tells_nothing_of_a_workers_speed",
        ),
    ),
    Mutant(
        "a desk that is gone is waited for",
        f"{RUNTIME}/relay/sums.py",
        "return bool(self._unwanted) or publisher.link[0] in GIVEN_UP",
        "return bool(self._unwanted)",
        (f"{LENT}::test_a_delivery_ends_as_soon_as_the_desk_is_lost_or_refuses",),
    ),
    Mutant(
        "sums go on that nobody wants any more",
        f"{RUNTIME}/relay/sums.py",
        "return bool(self._unwanted) or publisher.link[0] in GIVEN_UP",
        "return publisher.link[0] in GIVEN_UP",
        (f"{LENT}::test_a_worker_that_is_let_go_of_delivers_nothing_more",),
    ),
    Mutant(
        "a worker that computes is taken for dead",
        f"{RUNTIME}/coordinator/hosted.py",
        'await self._wire.call(self._bounds.release, "release", term)',
        'await self._wire.call(self._bounds.command, "release", term)',
        (f"{LANE}::test_a_release_waits_for_the_call_in_hand",),
    ),
    Mutant(
        "a lent machine is launched upon",
        f"{RUNTIME}/coordinator/generation.py",
        "names = self._herd.names(without=self._lender.lent)",
        "names = self._herd.names()",
        (f"{LOANS}::test_what_the_lent_machine_generated_goes_on_elsewhere_from_the_tokens_that_came",),
    ),
    Mutant(
        "advantages are not centred",
        f"{RUNTIME}/training/advantages.py",
        "mean = math.fsum(rewards) / len(rewards)",
        "mean = 0.0",
        GRADIENT,
    ),
    Mutant(
        "ratios are not clipped from above",
        f"{RUNTIME}/training/loss.py",
        "held = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)",
        "held = ratio.clamp(min=1 - config.clip_low)",
        GRADIENT,
    ),
    Mutant(
        "no weight is cut",
        f"{RUNTIME}/training/loss.py",
        "importance.clamp(max=config.importance_cap)",
        "importance",
        (f"{IMPORTANCE}::test_a_token_weighs_its_ratio_up_to_the_cap", WEIGHED),
    ),
    Mutant(
        "weights are cut from below",
        f"{RUNTIME}/training/loss.py",
        "importance.clamp(max=config.importance_cap)",
        "importance.clamp(min=config.importance_cap)",
        (f"{IMPORTANCE}::test_at_equal_weights_it_is_the_plain_loss", WEIGHED),
    ),
    Mutant(
        "the sampler's logprobs are the trainer's, recomputed",
        f"{RUNTIME}/training/loss.py",
        "drift = log_ratio(start, behaviour)",
        "drift = log_ratio(start, start)",
        (f"{IMPORTANCE}::test_a_token_weighs_its_ratio_up_to_the_cap", WEIGHED),
    ),
    Mutant(
        "a weight carries a gradient",
        f"{RUNTIME}/training/loss.py",
        "start = logprobs.detach() if proximal is None else proximal",
        "start = logprobs if proximal is None else proximal",
        (f"{IMPORTANCE}::test_a_token_weighs_its_ratio_up_to_the_cap", WEIGHED),
    ),
    Mutant(
        "later minibatches forget the weights at the start of the step",
        f"{RUNTIME}/training/learner.py",
        "return [None, *(self.logprobs(share) for share in shares[1:])]",
        "return [None for _ in shares]",
        (f"{IMPORTANCE}::test_later_minibatches_are_held_to_the_weights_at_the_start",),
    ),
    Mutant(
        "mode OnPolicy has a cap",
        f"{RUNTIME}/training/config.py",
        "importance_cap=algorithm.importance_cap if spec.mode is Mode.ASYNCHRONOUS else None,",
        "importance_cap=algorithm.importance_cap,",
        (f"{IMPORTANCE}::test_only_an_asynchronous_job_has_a_cap",),
    ),
    Mutant(
        "a checkpoint counts without its marker",
        f"{RUNTIME}/training/checkpoint.py",
        "return (folder / MARKER).is_file()",
        "return folder.is_dir()",
        CHECKPOINTS,
    ),
    Mutant(
        "a checkpoint's checksum is not looked at",
        f"{RUNTIME}/training/checkpoint.py",
        "if file_sha256(path) != written.sha256:",
        "if False:",
        CHECKPOINTS,
    ),
    # --- every response is trained on once, and is of one version ---
    Mutant(
        "tokens are taken from whoever sends them",
        f"{RUNTIME}/scheduling/partials.py",
        "if held is None or held.lease != lease:",
        "if held is None:",
        SCHEDULING,
    ),
    Mutant(
        "repeated tokens are appended again",
        f"{RUNTIME}/scheduling/partials.py",
        "held.token_ids.extend(token_ids[known:])",
        "held.token_ids.extend(token_ids)",
        SCHEDULING,
    ),
    Mutant(
        "a lost weight version's number is used again",
        f"{RUNTIME}/scheduling/versions.py",
        "(entry.version for entry in self.history)]) + 1",
        "(entry.version for entry in self.history if not entry.lost)]) + 1",
        SCHEDULING,
    ),
    Mutant(
        "a failed reward counts as zero",
        f"{RUNTIME}/coordinator/generation.py",
        "reward = None\n",
        "reward = 0.0\n",
        ROUNDS,
    ),
    Mutant(
        "responses are not assigned before they are trained on",
        f"{RUNTIME}/coordinator/rounds.py",
        "await self._parts.store.do(lambda store: store.assign(step, keys))",
        "assert keys",
        ROUNDS,
    ),
    Mutant(
        "a migrated store has no triggers",
        f"{RUNTIME}/coordinator/store_migrations.py",
        "    for trigger in triggers:",
        "    for trigger in ():",
        (f"{MIGRATIONS}::test_the_schema_is_that_of_a_new_store",),
    ),
    Mutant(
        "the round under way is lost in a migration",
        f"{RUNTIME}/coordinator/store_migrations.py",
        "    for step, kind, prompts, responses, groups, group_size in db.execute(opened).fetchall():",
        "    for step, kind, prompts, responses, groups, group_size in ():",
        (f"{MIGRATIONS}::test_the_round_under_way_goes_on_where_it_was",),
    ),
    Mutant(
        "the store lets anything be trained on",
        f"{RUNTIME}/coordinator/store_schema.py",
        """f"NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE {_SAME} AND sample = NEW.sample)",""",
        '"0",',
        STORE,
    ),
    # --- rounds that race: the first win, the rest is stopped, waits, and comes back ---
    Mutant(
        "nobody wins the race inside a prompt",
        f"{RUNTIME}/scheduling/rounds.py",
        "self._end([key for key in self._keys[prompt] if key not in places], SampleState.LOST)",
        "pass",
        RACE,
    ),
    Mutant(
        "nobody wins the race between prompts",
        f"{RUNTIME}/scheduling/rounds.py",
        "if len(self._whole) >= self.plan.shape.groups and not self.complete:",
        "if False:",
        RACE,
    ),
    Mutant(
        "a place that is given back stays empty",
        f"{RUNTIME}/scheduling/rounds.py",
        "if sibling == key or self._samples[sibling].state is SampleState.LOST:",
        "if sibling == key:",
        RACE,
    ),
    Mutant(
        "groups of equal rewards take places",
        f"{RUNTIME}/scheduling/rounds.py",
        "if self.plan.rules.drop_equal and len(rewards) == 1:",
        "if False:",
        RACE,
    ),
    Mutant(
        "losers run on",
        f"{RUNTIME}/coordinator/generation.py",
        "await self._herd.abort(aborts)",
        "assert aborts",
        (f"{TAIL}::test_what_lost_is_aborted_on_its_engine",),
    ),
    Mutant(
        "losers of a dead coordinator run on",
        f"{RUNTIME}/coordinator/generation.py",
        "before it aborted the losers.\n            await self._track_replicas()\n",
        "before it aborted the losers.\n",
        ("tests/coordinator/test_coordinator_crashes.py::test_killed_before_and_after_every_store_call_of_a_race[3]",),
    ),
    Mutant(
        "a long round takes what it likes",
        f"{RUNTIME}/scheduling/tail_batching.py",
        "queued=min(queued, groups))",
        "queued=0)",
        NEXT_ROUND,
    ),
    Mutant(
        "a job ends with long prompts left",
        f"{RUNTIME}/scheduling/tail_batching.py",
        "if queued + launched - groups <= (rounds_left - 1) * groups:",
        "if True:",
        NEXT_ROUND,
    ),
    Mutant(
        "a prompt is tried again with the numbers that made it long",
        f"{RUNTIME}/scheduling/trajectory.py",
        'text = f"{run_seed}/{step}/{key}/',
        'text = f"{run_seed}/{key}/',
        (f"{TAIL}::test_a_prompt_that_lost_is_tried_again_with_other_random_numbers",),
    ),
    Mutant(
        "prompts that lost are not queued",
        f"{RUNTIME}/coordinator/store_records.py",
        "json.dumps([str(prompt) for prompt in boundary.queue]),",
        '"[]",',
        (f"{TAIL}::test_short_rounds_race_and_long_rounds_finish_what_lost", *STORE),
    ),
    Mutant(
        "a queued prompt's attempts begin anew",
        f"{RUNTIME}/coordinator/store.py",
        "known[key].attempt if key in known else 0",
        "0",
        STORE,
    ),
    # --- asynchronous: dates that are kept, and replicas that are packed ---
    Mutant(
        "a group that is due is not waited for",
        f"{RUNTIME}/scheduling/experience.py",
        "return any(place >= slack * count for place, slack in enumerate(slacks))",
        "return False",
        EXPERIENCE,
    ),
    Mutant(
        "groups in flight are waited for only at the bound itself",
        f"{RUNTIME}/scheduling/experience.py",
        "return any(place >= slack * count for place, slack in enumerate(slacks))",
        "return 0 in slacks",
        EXPERIENCE,
    ),
    Mutant(
        "groups that are due do not go first",
        f"{RUNTIME}/scheduling/experience.py",
        "chosen = [*urgent.values(), *(one for one in usable if one.prompt not in urgent)]",
        "chosen = usable",
        EXPERIENCE,
    ),
    Mutant(
        "groups in flight keep no place in later updates",
        f"{RUNTIME}/scheduling/experience.py",
        "for staleness in (*in_flight, *(one.staleness for one in ranked))]",
        "for staleness in (one.staleness for one in ranked)]",
        EXPERIENCE,
    ),
    Mutant(
        "what is over the bound is trained on",
        f"{RUNTIME}/scheduling/experience.py",
        "usable = [one for one in chosen if one.staleness <= bound]",
        "usable = chosen",
        EXPERIENCE,
    ),
    Mutant(
        "more groups are begun than updates take in time",
        f"{RUNTIME}/scheduling/experience.py",
        "room = min(room, (date + 1) * count - sum(slack <= date for slack in slacks))",
        "pass",
        EXPERIENCE,
    ),
    Mutant(
        "old weights begin as many groups as new ones",
        f"{RUNTIME}/scheduling/experience.py",
        "own = bound - max(0, weights)",
        "own = bound",
        EXPERIENCE,
    ),
    Mutant(
        "a full buffer closes nothing",
        f"{RUNTIME}/scheduling/experience.py",
        "room = max(0, capacity - len(opened))",
        "room = capacity",
        EXPERIENCE,
    ),
    Mutant(
        "weights over the bound begin groups",
        f"{RUNTIME}/scheduling/experience.py",
        "    if weights > bound:\n        return 0\n",
        "    weights = min(weights, bound)\n",
        EXPERIENCE,
    ),
    Mutant(
        "what teaches little is never trained on",
        f"{RUNTIME}/scheduling/experience.py",
        "share = -(-count // OLDEST_SHARE)",
        "share = 0",
        EXPERIENCE,
    ),
    Mutant(
        "a uniform sample is the same at every update",
        f"{RUNTIME}/scheduling/experience.py",
        'f"{seed}/{prompt}"',
        'f"{prompt}"',
        EXPERIENCE,
    ),
    Mutant(
        "the freshest are trained on first",
        f"{RUNTIME}/scheduling/experience.py",
        "key=lambda one: -one.staleness",
        "key=lambda one: one.staleness",
        EXPERIENCE,
    ),
    Mutant(
        "a replica that just received is emptied (Algorithm 1 as printed)",
        f"{RUNTIME}/scheduling/repack.py",
        "if any(merge.destination == source.name for merge in merges):",
        "if False:",
        REPACK,
    ),
    Mutant(
        "an emptied replica receives",
        f"{RUNTIME}/scheduling/repack.py",
        "bins.pop(source.name, None)",
        "pass",
        REPACK,
    ),
    Mutant(
        "repack mixes weight versions",
        f"{RUNTIME}/scheduling/repack.py",
        "_pack([load for load in idle if load.version == version], rules)",
        "_pack(idle, rules)",
        REPACK,
    ),
    Mutant(
        "repack fills replicas by what they hold now",
        f"{RUNTIME}/scheduling/repack.py",
        "return max(self.tokens, self.expected_tokens)",
        "return self.tokens",
        REPACK,
    ),
    Mutant(
        "repack counts a receiver's first load only",
        f"{RUNTIME}/scheduling/repack.py",
        "        best.peak += source.peak\n",
        "",
        REPACK,
    ),
    Mutant(
        "repack decodes any number at once",
        f"{RUNTIME}/scheduling/repack.py",
        "self.trajectories + more.trajectories <= rules.max_batch\n            and ",
        "",
        REPACK,
    ),
    Mutant(
        "a replica with work waiting counts as idle",
        f"{RUNTIME}/scheduling/repack.py",
        "        and load.waiting == 0\n",
        "",
        REPACK,
    ),
    Mutant(
        "a replica that fills counts as idle",
        f"{RUNTIME}/scheduling/repack.py",
        "and load.tokens <= load.kv_before + load.generated",
        "",
        REPACK,
    ),
    Mutant(
        "a replica is idle only when one of its responses ends",
        f"{RUNTIME}/scheduling/repack.py",
        "and load.tokens <= load.kv_before + load.generated",
        "and load.tokens <= load.kv_before",
        REPACK,
    ),
    Mutant(
        "a replica that drains receives",
        f"{RUNTIME}/scheduling/repack.py",
        "for load in ascending if load.receives}",
        "for load in ascending}",
        REPACK,
    ),
    Mutant(
        "repack spreads instead of packing",
        f"{RUNTIME}/scheduling/repack.py",
        "best = max(fitting,",
        "best = min(fitting,",
        REPACK,
    ),
    # --- weights: one order of coordinators and chains, whole versions only ---
    Mutant(
        "a relay accepts an older chain",
        f"{RUNTIME}/relay/fence.py",
        "if other.chain < self.chain:",
        "if False:",
        FENCES,
    ),
    Mutant(
        "a relay ends without waiting for the caller that it lets in",
        f"{RUNTIME}/relay/inlet.py",
        "with self._turn:  # Who has it may",
        "if True:  # Who has it may",
        (f"{INLET}::test_a_caller_that_is_let_in_while_the_relay_ends_is_ended_too",),
    ),
    Mutant(
        "a relay that has ended lets a caller in",
        f"{RUNTIME}/relay/inlet.py",
        'caller.refuse(wire.BUSY, "this relay is ending")',
        "pass",
        (f"{INLET}::test_a_caller_still_in_the_handshake_when_the_relay_has_ended_is_refused",),
    ),
    Mutant(
        "a machine whose process ended counts as gone",
        f"{RUNTIME}/relay/tcp.py",
        "if error.errno in ANSWERS:",
        "if False:",
        (f"{WIRE}::test_a_machine_where_nobody_listens_answers",),
    ),
    Mutant(
        "trouble of its own makes a neighbour a witness",
        f"{RUNTIME}/relay/tcp.py",
        "if error.errno not in SILENCE:",
        "if False:",
        (f"{WIRE}::test_trouble_of_ones_own_says_nothing_about_the_other",),
    ),
    Mutant(
        "one lost packet makes a neighbour a witness",
        f"{RUNTIME}/relay/tcp.py",
        "PROBES = 2",
        "PROBES = 1",
        (f"{WIRE}::test_one_lost_packet_makes_no_witness",),
    ),
    Mutant(
        "readers are given a version before it is whole",
        f"{RUNTIME}/relay/segment.py",
        "if not self.owns(draft) or not draft.whole:",
        "if not self.owns(draft):",
        SEGMENT,
    ),
    Mutant(
        "a chunk's checksum is not looked at",
        f"{RUNTIME}/relay/slot.py",
        "if self.manifest.checksums[index] != checksum:",
        "if False:",
        SEGMENT,
    ),
    # --- the Ray head dies and the engines live ---
    Mutant(
        "the head's tables die with it",
        f"{RUNTIME}/pod/ray_node.py",
        'settings["RAY_gcs_storage"] = "rocksdb"',
        'settings["RAY_gcs_storage"] = "memory"',
        (
            "tests/coordinator/test_coordinator_kubernetes.py::"
            "test_the_token_is_named_by_its_file_and_only_the_head_has_tables",
        ),
    ),
    Mutant(
        "the next coordinator makes its own actors",
        f"{RUNTIME}/coordinator/ray_binding.py",
        "get_if_exists=True,",
        "get_if_exists=False,",
        ("tests/coordinator/test_coordinator_contract.py::test_the_next_coordinator_finds_the_same_processes",),
    ),
    Mutant(
        "the numbers of a lost store are used again",
        f"{RUNTIME}/scheduling/versions.py",
        "return self if self.history else self.seen(version + UNREPORTED)",
        "return self",
        (
            "tests/coordinator/test_coordinator_lost_store.py::"
            "test_a_history_that_was_lost_begins_above_what_was_reported",
        ),
    ),
    Mutant(
        "a lost store takes its long-prompt queue along",
        f"{RUNTIME}/coordinator/recovery.py",
        "queue=standing.queue if pool is None else ())",
        "queue=())",
        (f"{LOST_STORE}::test_the_queue_and_the_cursor_are_in_the_checkpoint[2-1-in the next round-lose_the_store]",),
    ),
    Mutant(
        "a new history goes on from a step that nobody knows",
        f"{RUNTIME}/coordinator/recovery.py",
        "if step != trainer.kept:",
        "if False:",
        (f"{LOST_STORE}::test_the_queue_and_the_cursor_are_in_the_checkpoint[3-2-in the next round-lose_the_store]",),
    ),
    Mutant(
        "the anchors of a lost store are lost",
        f"{RUNTIME}/coordinator/recovery.py",
        "store.start_at(fresh, standing.anchors, standing.version, pool)",
        "store.start_at(fresh, {}, standing.version, pool)",
        (f"{LOST_STORE}::test_what_a_checkpoint_keeps_is_what_a_new_history_begins_with",),
    ),
    Mutant(
        "an object that was reported is left out",
        f"{RUNTIME}/coordinator/coordinator.py",
        "last_round=boundary.report or self._reporter.draft.last_round,",
        "last_round=boundary.report,",
        (
            "tests/coordinator/test_coordinator_lost_store.py::"
            "test_a_lost_store_costs_no_more_than_the_checkpoint_says[3-machines at once]",
        ),
    ),
    # --- layouts: the same processes, the round's weights, one engine to an accelerator ---
    Mutant(
        "the figures of a step come after its tokens",
        f"{RUNTIME}/rollout/outbox.py",
        "self._stats, self._weight_version = stats, weight_version",
        "self._stats, self._weight_version = self._stats if deltas else stats, weight_version",
        (
            "tests/rollout/test_rollout_replica.py::"
            "test_a_report_holds_the_tokens_of_a_step_and_its_figures_or_neither[Reference]",
        ),
    ),
    Mutant(
        "a change of layout starts the replica anew",
        f"{RUNTIME}/rollout/replica.py",
        "        self._layouts.rest()",
        "        self._layouts.rest(); self._outbox._boot = uuid.uuid4().hex",
        (f"{SEAT}::test_a_change_of_layout_keeps_the_boot_and_drops_requests_and_weights",),
    ),
    Mutant(
        "weights of before a change of layout are thought to be there",
        f"{RUNTIME}/coordinator/fleet.py",
        "        machine.loaded = None",
        "        pass",
        (f"{LAYOUTS}::test_the_next_round_runs_in_the_targets_layout_in_the_same_processes",),
    ),
    Mutant(
        "a layout is applied before it is in force",
        f"{RUNTIME}/coordinator/following.py",
        "            await self._fleet.lay_out(*_layout(target, kind))",
        "            self._fleet.layouts.want(*_layout(target, kind))",
        (f"{LAYOUTS}::test_applied_is_said_when_the_layout_is_in_force",),
    ),
    Mutant(
        "nobody makes room for a wider layout",
        f"{RUNTIME}/coordinator/layouts.py",
        "        await asyncio.gather(*(seat.make_room(self._term, tensor_parallel) for seat in machine.seats))",
        "        pass",
        (f"{LAYOUTS}::test_an_accelerator_works_for_one_engine_at_a_time",),
    ),
    Mutant(
        "three layouts are kept",
        f"{RUNTIME}/rollout/layouts.py",
        "        while len(self._kept) >= KEPT:",
        "        while len(self._kept) > KEPT:",
        (f"{SEAT}::test_at_most_two_engines_are_kept_and_the_least_recently_used_goes",),
    ),
    Mutant(
        "a machine without any layout is not told",
        f"{RUNTIME}/coordinator/layouts.py",
        "        refusals += [one.text for one in self._unable.values()]",
        "        refusals += []",
        (f"{LAYOUTS}::test_a_machine_without_any_layout_is_told_and_comes_when_its_engines_start",),
    ),
    Mutant(
        "machines that cannot start their engines are waited for for ever",
        f"{RUNTIME}/coordinator/layouts.py",
        "        return bool(told) and all(",
        "        return False and all(",
        (f"{LAYOUTS}::test_a_job_none_of_whose_machines_can_start_its_engines_ends_with_their_words",),
    ),
    Mutant(
        "machines that are still to come are thought to be unable",
        f"{RUNTIME}/coordinator/layouts.py",
        "for name in {*machines, *self._expected}]",
        "for name in machines]",
        (f"{LAYOUTS}::test_one_bad_machine_does_not_end_a_job_whose_other_ones_are_still_to_come",),
    ),
    Mutant(
        "a machine's next pod is thought to be unable",
        f"{RUNTIME}/coordinator/layouts.py",
        "        self._unable.pop(machine, None)\n        self.forget(machine)",
        "        self.forget(machine)",
        (f"{LAYOUTS}::test_what_a_machine_refused_is_no_word_of_its_next_pod",),
    ),
    Mutant(
        "engines that do not start at once never do",
        f"{RUNTIME}/coordinator/layouts.py",
        "self.tries >= REFUSALS and self.last - self.first >= patience",
        "self.tries >= REFUSALS",
        (f"{LAYOUTS}::test_engines_that_start_after_a_while_end_no_job",),
    ),
    Mutant(
        "ranks may disagree",
        f"{RUNTIME}/rollout/ranks.py",
        "        if len({agreement for _, agreement, _ in answers}) > 1:",
        "        if not answers:",
        (f"{SEAT}::test_ranks_that_make_different_tokens_end_the_engine",),
    ),
    Mutant(
        "a rank that is only slow is ended",
        f"{RUNTIME}/rollout/ranks.py",
        "            ready = wait(silent, None if ends is None else max(0.0, ends - time.monotonic()))",
        "            ready = wait(silent, None if ends is None else 0.0)",
        (f"{SEAT}::test_an_error_is_not_told_before_the_others_had_time_to_answer",),
    ),
    Mutant(
        "late answers of a rank are taken for those of the next command",
        f"{RUNTIME}/rollout/ranks.py",
        "                self._give_up(silent)",
        "                pass",
        (f"{SEAT}::test_an_error_of_one_rank_is_told_though_the_other_waits_for_ever",),
    ),
    # --- rollout: what was asked for, from the weights that were asked for ---
    Mutant(
        "a replica obeys a former coordinator",
        f"{RUNTIME}/rollout/replica.py",
        "if term < self._term:",
        "if False:",
        REPLICA,
    ),
    Mutant(
        "an attempt that is repeated generates again",
        f"{RUNTIME}/rollout/ledger.py",
        "if seen is not None and request.attempt <= seen:",
        "if False:",
        REPLICA,
    ),
    Mutant(
        "whatever version the relay holds is loaded",
        f"{RUNTIME}/rollout/weights.py",
        "if weights.manifest.version != version:",
        "if False:",
        REPLICA,
    ),
    Mutant(
        "the prefix cache outlives its weights",
        f"{RUNTIME}/rollout/vllm_engine.py",
        "if not self._engine.reset_prefix_cache():",
        "if False:",
        VLLM,
    ),
    Mutant(
        "a tied head keeps its old weights",
        f"{RUNTIME}/rollout/vllm_worker.py",
        "repair_tied_head(self.model_runner.model)",
        "pass",
        VLLM,
    ),
    Mutant(
        "log-probabilities ignore the temperature",
        f"{RUNTIME}/rollout/vllm_engine.py",
        '"processed_logprobs"',
        '"raw_logprobs"',
        VLLM,
    ),
    # --- the operator ---
    Mutant(
        "an incarnation is used again",
        f"{OPERATOR}/policies/placement.py",
        "number = max(seen.highest_incarnation(machine), incarnations.get(machine, 0)) + 1",
        "number = seen.highest_incarnation(machine) + 1",
        PLAN,
    ),
    Mutant(
        "the back-off is not written down",
        f"{OPERATOR}/policies/plan.py",
        '"replacements": roster.replacements,',
        '"replacements": before.replacements,',
        PLAN,
    ),
    Mutant(
        "an equal status is written again",
        f"{OPERATOR}/policies/plan.py",
        'return None if mine == job.status.model_copy(update={"runtime": None}) else mine',
        "return mine",
        PLAN,
    ),
    Mutant(
        "Complete is taken back",
        f"{OPERATOR}/policies/plan.py",
        "if job.status.ended:",
        "if False:",
        PLAN,
    ),
    Mutant(
        "a new chain keeps the old epoch",
        f"{OPERATOR}/policies/relay.py",
        "epoch=floor + 1,",
        "epoch=floor,",
        POLICIES,
    ),
    Mutant(
        "a machine leaves before it is drained",
        f"{OPERATOR}/policies/drain.py",
        "return frozenset(machine for machine in leaving if machine in drained or machine not in working)",
        "return frozenset(leaving)",
        POLICIES,
    ),
    Mutant(
        "who keeps failing needs a second witness",
        f"{OPERATOR}/policies/failure.py",
        "named and suspect.reason == KEEPS_FAILING:",
        "named and suspect.reason == KEEPS_FAILING and len(suspect.witnesses) >= WITNESSES:",
        POLICIES,
    ),
    Mutant(
        "changes of a spec are not looked at",
        f"{OPERATOR}/policies/admission.py",
        "validate_update(accepted, job)",
        "pass",
        EDITS,
    ),
    Mutant(
        "the accepted spec is not written down",
        f"{OPERATOR}/policies/plan.py",
        '"accepted": accept(job),\n        "incarnations": _numbers(before, seen, moves.created),',
        '"incarnations": _numbers(before, seen, moves.created),',
        EDITS,
    ),
    Mutant(
        "the same refusal is told anew at every try",
        f"{OPERATOR}/policies/conditions.py",
        "before.conditions, generation, now)",
        "status.conditions, generation, now)",
        ("tests/operator/test_operator_plan.py::test_the_same_refusal_at_the_next_try_writes_nothing",),
    ),
    Mutant(
        "a refused edit counts as Ready",
        f"{OPERATOR}/policies/conditions.py",
        "facts.is_ready and facts.refused is None",
        "facts.is_ready",
        EDITS,
    ),
    Mutant(
        "what another cluster accepted counts",
        f"{API}/accepted.py",
        'memory.get("uid") == (document.get("metadata") or {}).get("uid")',
        "True",
        EDITS,
    ),
    Mutant(
        "a restarted coordinator follows a refused edit",
        f"{RUNTIME}/coordinator/control_plane_k8s.py",
        "accepted_job(newest) or load(newest)",
        "load(newest)",
        FOLLOWING,
    ),
    Mutant(
        "what was removed is seen to be gone by its event alone",
        f"{OPERATOR}/policies/plan.py",
        "if not decided.removals:",
        "if decided.removals is not None:",
        ("tests/operator/test_operator_plan.py::test_what_was_removed_is_looked_at_again_though_no_event_may_tell",),
    ),
    Mutant(
        "whatever pod has the name is deleted",
        f"{OPERATOR}/act.py",
        "pod.name, uid=pod.uid)",
        "pod.name)",
        DELETIONS,
    ),
    # --- faults: what only the simulator finds ---
    Mutant(
        "replicas are known by their names",
        f"{RUNTIME}/coordinator/herd.py",
        "present.get(name) is not replica",
        "name not in present",
        (f"{COMINGS}::test_a_replica_lost_and_back_while_another_takes_its_time_is_noticed",),
    ),
    Mutant(
        "a late abort ends a later attempt",
        f"{RUNTIME}/rollout/ledger.py",
        "if self._attempts.get(key, 0) <= attempt:",
        "if attempt:",
        ("tests/rollout/test_rollout_policies.py::test_an_attempt_starts_at_most_once_and_only_upwards",),
    ),
    Mutant(
        "weights are published whatever step they are of",
        f"{RUNTIME}/training/trainer.py",
        'if step != session.position.step:\n            raise Refused(\n                f"version',
        'if step is None:\n            raise Refused(\n                f"version',
        ("tests/training/test_training_trainer.py::test_weights_are_published_for_the_step_that_they_are_of",),
    ),
    Mutant(
        "nobody starts the trainer for starving machines",
        f"{RUNTIME}/coordinator/fleet.py",
        "self.starved = True",
        "self.starved = False",
        (f"{COMINGS}::test_a_round_whose_weights_nobody_holds_any_more_gets_them_from_a_new_trainer",),
    ),
    Mutant(
        "a call that fails late ends the next trainer",
        f"{RUNTIME}/coordinator/trainer_seat.py",
        "if trainer is not self._trainer:",
        "if trainer is None:",
        (f"{COMINGS}::test_a_call_that_fails_late_does_not_end_the_next_trainer",),
    ),
    Mutant(
        "a trainer whose next pod has no address yet is waited for without letting go of the processor",
        f"{RUNTIME}/coordinator/trainer_seat.py",
        'await self.lose("its pods changed")',
        "pass",
        (f"{TRAINER_SEAT}::test_a_trainer_whose_next_pod_has_no_address_yet_is_waited_for",),
    ),
    Mutant(
        "a command overtakes one whose caller gave up",
        f"{RUNTIME}/training/group.py",
        "return await asyncio.shield(self._command)",
        "return await self._command",
        ("tests/training/test_training_group.py::test_the_next_command_waits_for_one_whose_caller_gave_up",),
    ),
    Mutant(
        "a final model that cannot be written ends the coordinator",
        f"{RUNTIME}/coordinator/coordinator.py",
        "path = await self._checkpoints.export()",
        "path = await self._trainer.call(lambda trainer: trainer.export(self._term))",
        (
            "tests/coordinator/test_coordinator_rounds.py::test_a_final_model_that_cannot_be_written_is_waited_with_and_not_lost",
        ),
    ),
    Mutant(
        "a coordinator that is out of office takes it for a checkpoint that failed",
        f"{RUNTIME}/coordinator/checkpointing.py",
        "except StaleTerm:\n            raise\n        except Refused as error:\n            log.error",
        "except Refused as error:\n            log.error",
        (f"{TRAINER_SEAT}::test_whoever_is_out_of_office_leaves_the_trainer_to_the_next[checkpoint]",),
    ),
    Mutant(
        "a trainer that refuses an update is asked again",
        f"{RUNTIME}/coordinator/trainer_seat.py",
        "await self.lose(error)",
        "pass",
        (f"{TRAINER_SEAT}::test_a_trainer_that_refuses_is_not_asked_again[train]",),
    ),
    Mutant(
        "a trainer that refuses to publish is asked again",
        f"{RUNTIME}/coordinator/trainer_seat.py",
        "await self.lose(error)",
        "pass",
        (f"{TRAINER_SEAT}::test_a_trainer_that_refuses_is_not_asked_again[publish]",),
    ),
    Mutant(
        "a restart begins a response again from nothing",
        f"{RUNTIME}/coordinator/generation.py",
        "self._partials.restore(key, partial)",
        "pass",
        (f"{SEEDS}[0]", f"{SEEDS}[1]", f"{SEEDS}[2]"),
    ),
    Mutant(
        "a round under way is left when fewer are asked for",
        f"{RUNTIME}/coordinator/coordinator.py",
        " or await self.course.under_way():",
        ":",
        (
            "tests/coordinator/test_coordinator_rounds.py"
            "::test_a_round_under_way_is_played_to_its_end_though_fewer_are_asked_for_and_the_trainer_is_lost[trainer]",
        ),
    ),
    Mutant(
        "rounds that are asked for while the final model is written are not played",
        f"{RUNTIME}/coordinator/coordinator.py",
        "            if boundary.step >= self._following.rounds:\n",
        "            if True:\n",
        (
            "tests/coordinator/test_coordinator_rounds.py"
            "::test_rounds_that_are_asked_for_while_the_final_model_waits_for_space_are_played",
        ),
    ),
    Mutant(
        "a simulated fault never ends",
        f"{RUNTIME}/simulation/injector.py",
        "call_later(fault.duration, end)",
        "call_later(1e6, end)",
        ("tests/simulation/test_simulation_runs.py::test_each_fault_begins_and_ends_and_the_job_goes_on",),
    ),
    Mutant(
        "the simulator does not look at tokens",
        f"{RUNTIME}/simulation/invariants.py",
        "(response.token_ids, response.logprobs) == made",
        "made is not None",
        (
            "tests/simulation/test_simulation_invariants.py"
            "::test_tokens_of_other_weights_are_seen_whatever_their_version_says",
        ),
    ),
    # --- the engine model ---
    Mutant(
        "the oldest is preempted",
        f"{RUNTIME}/enginemodel/engine.py",
        "youngest = next(reversed(self._running))",
        "youngest = next(iter(self._running))",
        ENGINE_MODEL,
    ),
    Mutant(
        "who was preempted queues behind the others",
        f"{RUNTIME}/enginemodel/engine.py",
        "self._waiting.move_to_end(youngest, last=False)",
        "self._waiting.move_to_end(youngest, last=True)",
        ENGINE_MODEL,
    ),
    Mutant(
        "a jump goes one step past the room in the KV cache",
        f"{RUNTIME}/enginemodel/engine.py",
        "room = (self.kv_tokens - self._context) // len(self._running)",
        "room = (self.kv_tokens - self._context) // len(self._running) + 1",
        ENGINE_MODEL,
    ),
    Mutant(
        "a request breaks into the step under way",
        f"{RUNTIME}/enginemodel/engine.py",
        "steps = self._steps_done(now) + 1",
        "steps = max(1, self._steps_done(now))",
        ENGINE_MODEL,
    ),
    Mutant(
        "a jump forgets that the context grows",
        f"{RUNTIME}/enginemodel/law.py",
        "grown = steps * context_tokens + batch * steps * (steps - 1) / 2",
        "grown = steps * context_tokens",
        ENGINE_MODEL,
    ),
    # --- workloads ---
    Mutant(
        "more responses change the first ones",
        f"{RUNTIME}/workloads/generator.py",
        "noise = of_responses.standard_normal((responses, self._scores))",
        "noise = of_responses.standard_normal((self._scores, responses)).T",
        (f"{WORKLOADS}::test_more_responses_keep_the_first",),
    ),
    Mutant(
        "a prompt launched again repeats its responses",
        f"{RUNTIME}/workloads/generator.py",
        "of_responses = random_stream(self.seed, self.task, step, index, 1 + attempt)",
        "of_responses = random_stream(self.seed, self.task, step, index, 1)",
        (f"{WORKLOADS}::test_another_attempt_is_the_same_prompt_with_new_responses",),
    ),
    Mutant(
        "a replay draws a response twice before all were drawn",
        f"{RUNTIME}/workloads/replay.py",
        "for place in random.permutation(len(prompt.responses))",
        "for place in random.integers(len(prompt.responses), size=len(prompt.responses))",
        (f"{WORKLOADS}::test_replay_of_the_recorded_size_is_the_recorded_step",),
    ),
    Mutant(
        "bad rows are always skipped",
        f"{RUNTIME}/workloads/errors.py",
        "if not self.skip_bad:",
        "if self.skip_bad is None:",
        ("tests/workloads/test_workloads_readers.py::test_bad_lengths",),
    ),
    # --- the API ---
    Mutant(
        "a rule is lost on its way to the server",
        f"{API}/cel.py",
        '"self.promptsPerRound % self.minibatches == 0"',
        '"true"',
        CEL,
    ),
    Mutant(
        "unknown fields are accepted",
        f"{API}/fields.py",
        'extra="forbid"',
        'extra="ignore"',
        INVALID,
    ),
    # --- rewards and the sandbox ---
    Mutant(
        "a wrong run shows how long a test takes",
        f"{RUNTIME}/scheduling/reward_timeout.py",
        "if right and kept >",
        "if kept >",
        ("tests/rewards/test_rewards_timeout.py::test_only_right_runs_move_the_anchor_and_only_up",),
    ),
    Mutant(
        "the size to start at is that of the longest round",
        f"{RUNTIME}/scheduling/starting_size.py",
        "    return min(whole)[1] if whole else None",
        "    return max(whole)[1] if whole else None",
        ("tests/coordinator/test_coordinator_starting_size.py",),
    ),
    Mutant(
        "a round is foretold as if each size had as many replicas",
        f"{RUNTIME}/cli/profile_start.py",
        "rollout.machines * (rollout.slots // size)",
        "rollout.machines * rollout.slots",
        ("tests/rollout/test_rollout_profile.py::test_the_size_to_start_at_is_told_and_written",),
    ),
    Mutant(
        "a value in a list is wanted as it stands",
        f"{RUNTIME}/rewards/testcases.py",
        "        wanted = (self.returns, self.returns[0]) if self.wrapped else (self.returns,)",
        "        wanted = (self.returns,)",
        ("tests/rewards/test_rewards_code.py::test_a_column_may_have_what_is_returned_in_a_list",),
    ),
    Mutant(
        "a judge's words are cut before the key is taken out",
        f"{RUNTIME}/rewards/judge.py",
        'return (text.replace(self._key, "***") if self._key else text)[:SHOWN]',
        'return text[:SHOWN].replace(self._key, "***") if self._key else text[:SHOWN]',
        ("tests/rewards/test_rewards_judge.py::test_no_part_of_the_key_is_shown_wherever_it_is_repeated",),
    ),
    Mutant(
        "a parser's message about what a judge sent is shown",
        f"{RUNTIME}/rewards/judge.py",
        "ours = isinstance(error, OSError | aiohttp.InvalidURL)",
        "ours = True",
        ("tests/rewards/test_rewards_judge.py::test_no_part_of_the_key_is_shown_wherever_it_is_repeated",),
    ),
    Mutant(
        "what runs rewards has the coordinator's token",
        f"{OPERATOR}/policies/pods.py",
        '"volumeMounts": _by_path([*mounts, *user.get("volumeMounts", [])]),',
        '"volumeMounts": _by_path([*main["volumeMounts"], *mounts, *user.get("volumeMounts", [])]),',
        ("tests/operator/test_operator_rewards_container.py",),
    ),
    Mutant(
        "programs run in the coordinator's container",
        f"{RUNTIME}/rewards/pool.py",
        "Sandbox(seats) if elsewhere is None else SandboxElsewhere(elsewhere, seats)",
        "Sandbox(seats)",
        ("tests/rewards/test_rewards_elsewhere.py::test_functions_and_programs_run_there_and_not_here",),
    ),
    Mutant(
        "a program outlives the call that was cancelled",
        f"{RUNTIME}/rewards/host.py",
        "await asyncio.wait({work, following}, return_when=asyncio.FIRST_COMPLETED)",
        "await asyncio.wait({work})",
        ("tests/rewards/test_rewards_elsewhere.py::test_a_cancelled_call_ends_its_program",),
    ),
    Mutant(
        "anchors are not stored",
        f"{RUNTIME}/coordinator/rounds.py",
        "risen, speed = self._parts.rewards.take_anchors(), generation.watch.speed()",
        "risen, speed = {}, generation.watch.speed()",
        ("tests/coordinator/test_coordinator_rewards.py::test_a_coordinator_that_comes_back_has_its_anchors",),
    ),
    Mutant(
        "anchors outlive the round that is rewound",
        f"{RUNTIME}/coordinator/coordinator.py",
        "self._rewards.restore_anchors(await self._store.do(Store.anchors))",
        "await self._store.do(Store.anchors)",
        (
            "tests/coordinator/test_coordinator_rewards.py::test_a_rewound_round_taught_nothing",
            "tests/simulation/test_simulation_runs.py::test_anchors_outlive_the_coordinator_and_a_rewind",
        ),
    ),
    Mutant(
        "a missing sandbox is no reason to stall",
        f"{OPERATOR}/policies/conditions.py",
        "facts.trouble or facts.halted",
        "facts.trouble",
        ("tests/operator/test_operator_policies.py::test_a_missing_sandbox_stalls_the_job_and_nothing_else_does",),
    ),
    Mutant(
        "a process goes on with the call that was cancelled",
        f"{RUNTIME}/sandbox/seats.py",
        "            except asyncio.CancelledError:",
        "            except ZeroDivisionError:",
        ("tests/rewards/test_rewards_functions.py::test_a_cancelled_call_does_not_mix_up_the_next_answers",),
    ),
    Mutant(
        "a shadow run delays its round",
        f"{RUNTIME}/rewards/code.py",
        "            task.add_done_callback(self._shadows.discard)",
        "            await task",
        ("tests/rewards/test_rewards_code.py::test_a_shadow_run_delays_nobody_and_is_counted_when_it_ends",),
    ),
    Mutant(
        "a process is killed before it could reap what runs under it",
        f"{RUNTIME}/sandbox/seats.py",
        "        self.stdin.close()\n        try:",
        "        try:",
        ("tests/rewards/test_rewards_elsewhere.py::test_a_supervisor_that_is_let_go_reaps_its_program",),
    ),
    Mutant(
        "what is left to the rewards' container is not reaped",
        f"{RUNTIME}/pod/reaper.py",
        "pid, status = os.wait()",
        "pid, status = os.waitpid(child, 0)",
        ("tests/rewards/test_rewards_elsewhere.py::test_nothing_stays_as_a_zombie",),
    ),
    Mutant(
        "a rewards' container that failed is waited for",
        f"{OPERATOR}/policies/observed.py",
        'return "Failed" if role is Role.COORDINATOR and codes.get(REWARDS_CONTAINER, 0) != 0 else None',
        "return None",
        ("tests/operator/test_operator_rewards_container.py",),
    ),
    Mutant(
        "the opening of the rewards hears nobody",
        f"{RUNTIME}/coordinator/coordinator.py",
        "await self._following.unless_suspended(self._prompts_from(state.model_files))",
        "await self._prompts_from(state.model_files)",
        ("tests/coordinator/test_coordinator_rewards.py::test_a_job_whose_rewards_are_slow_to_open_can_be",),
    ),
    Mutant(
        "programs cannot import what the image holds",
        f"{RUNTIME}/sandbox/sandbox.py",
        "json.dumps(installed_packages())",
        "json.dumps([])",
        ("tests/rewards/test_rewards_sandbox.py::test_a_program_may_import_what_lies_only_in_our_venv",),
    ),
    Mutant(
        "any length of a message is believed",
        f"{RUNTIME}/sandbox/streams.py",
        "if length > LONGEST_BYTES:",
        "if length > 1 << 64:",
        ("tests/rewards/test_rewards_sandbox.py::test_what_is_no_message_ends_the_talk",),
    ),
    Mutant(
        "a worker of ours keeps the coordinator's rights",
        f"{RUNTIME}/rewards/worker.py",
        "    if confined(rules):",
        "    if not rules:",
        ("tests/rewards/test_rewards_confined.py::test_a_text_that_is_evaluated_can_do_nothing",),
    ),
    Mutant(
        "a worker of ours has the coordinator's environment",
        f"{RUNTIME}/rewards/functions.py",
        'return {**kept, "LANG"',
        'return {**os.environ, "LANG"',
        ("tests/rewards/test_rewards_confined.py::test_a_text_that_is_evaluated_can_do_nothing",),
    ),
    Mutant(
        "a busy machine makes a rule late",
        f"{RUNTIME}/rewards/functions.py",
        "(left := seconds - (clock() - began) + self._waited() - waited) > 0",
        "(left := seconds - (clock() - began)) > 0",
        ("tests/rewards/test_rewards_functions.py::test_a_busy_machine_makes_no_rule_late",),
    ),
    Mutant(
        "a sandbox that fails is worth zero",
        f"{RUNTIME}/rewards/code.py",
        "raise ScoreFailed(Failure.SANDBOX_FAILED, self._rule.name, str(error)) from error",
        "return False",
        ("tests/rewards/test_rewards_code.py::test_a_failure_of_ours_is_no_zero",),
    ),
    Mutant(
        "programs may start processes",
        f"{RUNTIME}/sandbox/seccomp.py",
        '"clone": [_argument(0), (_JUMP_SET, 1, 0, _CLONE_THREAD), _REFUSE],',
        '"clone": [],',
        (f"{ESCAPES}::test_a_fork_bomb_makes_no_process",),
    ),
    Mutant(
        "a worker may empty what it may read",
        f"{RUNTIME}/sandbox/seccomp.py",
        "READ_ONLY = Opening(os.O_ACCMODE | os.O_TRUNC | os.O_CREAT, (os.O_RDONLY,))",
        "READ_ONLY = Opening(0, (os.O_RDONLY,))",
        ("tests/rewards/test_rewards_filter.py::test_no_kernel_with_landlock_lets_a_file_be_emptied[1-worker]",),
    ),
    Mutant(
        "programs may empty what they may read",
        f"{RUNTIME}/sandbox/seccomp.py",
        "OWN_FILES = Opening(os.O_ACCMODE | os.O_TRUNC,",
        "OWN_FILES = Opening(0,",
        ("tests/rewards/test_rewards_filter.py::test_no_kernel_with_landlock_lets_a_file_be_emptied[1-program]",),
    ),
    Mutant(
        "a worker without memory is worth zero",
        f"{RUNTIME}/rewards/functions.py",
        "if self._taken()[1] > FULL:",
        "if self._taken()[1] > 2.0:",
        ("tests/rewards/test_rewards_confined.py::test_a_lack_of_memory_is_no_zero",),
    ),
    Mutant(
        "a shadow run goes before calls that wait",
        f"{RUNTIME}/rewards/code.py",
        "while self._waiting:",
        "while self._waiting < 0:",
        ("tests/rewards/test_rewards_code.py::test_a_shadow_run_begins_when_no_call_waits",),
    ),
    Mutant(
        "programs may read every file",
        f"{RUNTIME}/sandbox/confinement.py",
        "landlock.restrict(_allowed(place.folder, interpreter))",
        "_allowed(place.folder, interpreter)",
        (f"{ESCAPES}::test_a_file_of_the_same_user_outside_cannot_be_read[Landlock]",),
    ),
    Mutant(
        "what a program writes is not counted",
        f"{RUNTIME}/sandbox/supervisor.py",
        "if bytes_written(pid) > FOLDER_BYTES:",
        "if bytes_written(pid) < 0:",
        (f"{ESCAPES}::test_what_writes_without_end_is_stopped[Landlock]",),
    ),
    Mutant(
        "a byte in each page is a byte",
        f"{RUNTIME}/sandbox/usage.py",
        'for name in ("wchar", "write_bytes"))',
        'for name in ("wchar",))',
        (f"{ESCAPES}::test_a_byte_in_each_page_counts_as_the_page[Landlock]",),
    ),
    Mutant(
        "a program may have itself killed by a timer",
        f"{RUNTIME}/sandbox/seccomp.py",
        '"timer_create": (222, 107), ',
        "",
        (f"{ESCAPES}::test_what_is_refused_is_an_error_of_the_program[Landlock]",),
    ),
    Mutant(
        "a program that hides itself is our failure",
        f"{RUNTIME}/sandbox/supervisor.py",
        "self._seen, self._unseen = True, None",
        "self._unseen = None",
        (f"{ESCAPES}::test_an_ordinary_user_without_any_right_gets_the_same",),
    ),
    Mutant(
        "a mode hides files",
        f"{RUNTIME}/sandbox/folders.py",
        '            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  #',
        "            return None  #",
        ("tests/rewards/test_rewards_folders.py::test_no_mode_hides_anything_from_an_ordinary_user",),
    ),
    Mutant(
        "a folder that stays shut is empty",
        f"{RUNTIME}/sandbox/folders.py",
        "        found = enough + 1\n",
        "        pass\n",
        ("tests/rewards/test_rewards_folders.py::test_what_stays_shut_counts_as_more_than_enough",),
    ),
    Mutant(
        "one kind of round teaches the other",
        f"{OPERATOR}/policies/parallelism.py",
        'kind = "short" if last.kind is RoundKind.SHORT else "long"',
        'kind = "long"',
        PARALLELISM,
    ),
    Mutant(
        "a round that had not heard of the target counts",
        f"{OPERATOR}/policies/parallelism.py",
        "if last.tensor_parallel_size == size:",
        "if True:",
        PARALLELISM,
    ),
    Mutant(
        "a step down that failed is tried again",
        f"{OPERATOR}/policies/parallelism.py",
        "if history.stepped_down:",
        "if False:",
        PARALLELISM,
    ),
    Mutant(
        "a resume overtakes the drain",
        f"{OPERATOR}/policies/plan.py",
        "    if job.spec.suspend or _stopping(job, seen):",
        "    if job.spec.suspend:",
        (
            "tests/operator/test_operator_plan.py::"
            "test_what_is_edited_under_a_suspension_reaches_new_pods_also_when_the_resume_overtakes_the_drain",
        ),
    ),
    Mutant(
        "a resumption cut short throws its pods away",
        f"{OPERATOR}/policies/plan.py",
        "not pod.deleting and pod.incarnation <= known.get(pod.machine, 0) for pod in seen.pods",
        "not pod.deleting for pod in seen.pods",
        ("tests/operator/test_operator_plan.py::test_a_resumption_cut_short_before_its_status_keeps_its_pods",),
    ),
    Mutant(
        "a size that engines refuse stays the target",
        f"{OPERATOR}/policies/parallelism.py",
        "    elif heard is not None and last.round > heard:",
        "    elif heard is not None and last.round < heard:",
        (
            "tests/operator/test_operator_parallelism.py::test_a_size_that_engines_refuse_is_left_and_not_tried_again_for_a_while",
        ),
    ),
    Mutant(
        "a size that engines refused is tried again at once",
        f"{OPERATOR}/policies/parallelism.py",
        "return last.round < (history.ceiling_round or 0) + REFUSED_ROUNDS",
        "return last.round < (history.ceiling_round or 0)",
        (
            "tests/operator/test_operator_parallelism.py::test_a_size_that_engines_refuse_is_left_and_not_tried_again_for_a_while",
        ),
        # --- benchmarks on the simulator ---
    ),
    Mutant(
        "engines of a profile are as fast as the roofline's",
        f"{RUNTIME}/simulation/cluster.py",
        "if self.engines is not None:",
        "if self.engines is not None and size > 8:",
        (f"{BENCHMARKS}::test_engines_of_a_profile_are_as_fast_and_as_large_as_measured",),
    ),
    Mutant(
        "a trace may have responses that no engine holds",
        f"{RUNTIME}/simulation/benchmarks/settings.py",
        "return min(_kv_tokens(setting), MAX_TOKENS_PER_SEQUENCE) - LONGEST_PROMPT",
        "return MAX_TOKENS_PER_SEQUENCE - LONGEST_PROMPT",
        (f"{BENCHMARKS}::test_a_trace_whose_longest_response_fits_no_engine_is_refused",),
    ),
    Mutant(
        "a filter's indices count validation rows",
        f"{RUNTIME}/workloads/trace.py",
        "prompts.append(Prompt(rows(), row.input, responses))",
        "prompts.append(Prompt(line - 1, row.input, responses))",
        ("tests/workloads/test_workloads_readers.py::test_filter_counts_neither_blank_lines_nor_validation_rows",),
    ),
    Mutant(
        "a job is not charged for its long rounds",
        f"{RUNTIME}/simulation/benchmarks/trial.py",
        "return sum(report.seconds or 0.0 for report in self.reports) + reward_stage * len(self.reports)",
        "return sum(report.seconds or 0.0 for report in self.reports[:4]) + reward_stage * len(self.reports)",
        (f"{BENCHMARKS}::test_a_job_pays_for_every_round_and_for_the_reward_stage_of_each",),
    ),
    Mutant(
        "a reward stage costs nothing",
        f"{RUNTIME}/simulation/benchmarks/trial.py",
        "return self.seconds(reward_stage) / self.prompts",
        "return self.seconds() / self.prompts",
        (f"{BENCHMARKS}::test_speed_is_prompts_over_seconds",),
    ),
    Mutant(
        "of a plain job's first rounds all of its seconds are told",
        f"{RUNTIME}/simulation/benchmarks/trial.py",
        "return replace(self, reports=self.reports[:rounds], prompts=",
        "return replace(self, prompts=",
        (f"{BENCHMARKS}::test_the_first_rounds_of_a_plain_job_are_a_shorter_job",),
    ),
    Mutant(
        "a lent machine loses what it had generated",
        f"{RUNTIME}/simulation/cluster.py",
        'STREAM_SECONDS if self.lendable else float("inf")',
        'float("inf")',
        (f"{BENCHMARKS}::test_what_a_lent_machine_generated_goes_on_elsewhere",),
    ),
    Mutant(
        "machines are lent for a hair's breadth",
        f"{RUNTIME}/scheduling/loan_gain.py",
        "return 0.0 if 0 < gain < CLEAR * alone else gain",
        "return gain",
        ("tests/coordinator/test_coordinator_loan_gain.py::test_the_gain",),
    ),
    Mutant(
        "a full disk's own roll-back hides it",
        f"{RUNTIME}/coordinator/store_file.py",
        "if db.in_transaction:",
        "if True:",
        ("tests/coordinator/test_coordinator_full_disk.py",),
    ),
    Mutant(
        "a killed coordinator is heard on its way out",
        f"{RUNTIME}/simulation/wire.py",
        "if not self._life.alive:\n            # A process",
        "if False:\n            # A process",
        ("tests/simulation/test_simulation_runs.py::test_a_coordinator_that_was_killed_takes_leave_of_nobody",),
    ),
    Mutant(
        "programs never meet their timeout",
        f"{RUNTIME}/simulation/programs.py",
        "taken = min(math.inf if endless else drawn, allowance.cpu_seconds)",
        "taken = drawn",
        (f"{BENCHMARKS}::test_programs_end_at_the_timeout_that_the_policy_decides",),
    ),  # --- profiles and real engines ---
    Mutant(
        "a step is made to a slower size",
        f"{OPERATOR}/policies/parallelism.py",
        "return other in seconds and size in seconds and seconds[other] >= seconds[size]",
        "return False",
        (f"{PARALLELISM[0]}::test_foretold_seconds_have_the_last_word",),
    ),
    Mutant(
        "a faster size is not taken",
        f"{OPERATOR}/policies/parallelism.py",
        "return best if seconds[best] <= CLEARLY * seconds[size] else size",
        "return size",
        (f"{PARALLELISM[0]}::test_foretold_seconds_have_the_last_word",),
    ),
    Mutant(
        "every layout is foretold with the engines of the present one",
        f"{RUNTIME}/coordinator/forecast.py",
        "law, replicas, seen = law_of(speeds), stage.replicas * layout // size, speeds[-1]",
        "law, replicas, seen = stage.law, stage.replicas, speeds[-1]",
        ("tests/coordinator/test_coordinator_forecast.py::test_a_round_is_foretold_in_every_layout_that_was_seen",),
    ),
    Mutant(
        "what a replica takes between two steps is not profiled",
        f"{RUNTIME}/rollout/step_watch.py",
        "median(steps[place + 1].began - steps[place].began for place in places),",
        "median(steps[place].ended - steps[place].began for place in places),",
        (f"{PROFILE}::test_the_coefficients_of_an_engine_are_found",),
    ),
    Mutant(
        "repeats of a load count by their worst",
        f"{RUNTIME}/enginemodel/profile.py",
        "seconds=median(one.seconds for one in its),",
        "seconds=max(one.seconds for one in its),",
        ("tests/enginemodel/test_enginemodel_profile.py::test_repeats_of_a_load_are_their_median",),
    ),
    Mutant(
        "a prompt that is launched again has the lengths that it had",
        f"{RUNTIME}/local/replay.py",
        "self._most, versions.index(version))",
        "self._most, 0)",
        (f"{REPLAY}::test_a_prompt_answers_anew_when_other_weights_launch_it",),
    ),
    Mutant(
        "what passes between rounds is not charged",
        f"{RUNTIME}/local/rollpacker_benchmark.py",
        "return self.closed[-1] - self.closed[0] + (self.reports[0].seconds or 0.0)",
        "return sum(report.seconds or 0.0 for report in self.reports)",
        (f"{REPLAY}::test_jobs_are_charged_whole_and_predictions_by_round",),
    ),
)
