"""Drawn scenario: a small job for a seed, at most 8 machines and 100 trajectories.

Seeds differ as much as possible, so that many seeds together reach what no hand-written job would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.spec.environments import EnvironmentState, EpisodeVersions
from rljob_api.spec.training import Mode, Sampler
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols import KvSize
from rljob_runtime.scheduling.asynchronous.repack_gain import merges_that_fit
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulator.episode_side import Environment, EpisodeScenario
from rljob_runtime.simulator.faults.plan import FaultPlan, draw_plan
from rljob_runtime.simulator.faults.spec_edits import draw_edit
from rljob_runtime.simulator.peers.cluster import SHORT_BOUNDS, ClusterSpec
from rljob_runtime.simulator.peers.code_rewards import Programs
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind
from rljob_runtime.simulator.peers.harness import Fault as HarnessFault
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.simulator.scenario import BestModel, Evaluated, Experience, Scenario

MOST_MACHINES = 8
MOST_TRAJECTORIES = 100
MOST_UPDATE_SECONDS = SHORT_BOUNDS.train - 2.0
"""Of an update whose responses are as long as they may be: a trainer that reaches its time-out finishes no round."""


def draw_scenario(seed: int, mode: Mode = Mode.ON_POLICY) -> Scenario:
    """Draw the scenario of a seed in this mode."""
    scenario = replace(_draw_rounds(seed), sources=_draw_sources(random.Random(f"{seed}/sources")))
    return scenario if mode is Mode.ON_POLICY else _asynchronous(scenario, random.Random(f"{seed}/asynchronous"))


def draw_switching(seed: int) -> Scenario:
    """Draw the scenario of a seed in which machines switch their layout inside rounds, with or without their KV.

    In three of four they switch at random, else by the policy of such a job, which measures layouts between rounds. The
    engines of half of the jobs compute contexts in several passes."""
    scenario, random_ = draw_scenario(seed), random.Random(f"{seed}/switching")
    site = replace(scenario.site, replicas=random_.choice([2, 4]), wider=())
    scenario = replace(scenario, site=site, episodes=None, profiles=False, switches=False)
    while not scenario.switches:
        scenario = _with_switches(_with_layouts(scenario, random_), random_)
    scenario = _with_kv(scenario, random_)
    scenario = scenario if random_.random() < 0.75 else replace(_profiled(scenario, random_), switches=False)
    return _with_prefill_budget(scenario, random.Random(f"{seed}/prefill-budget"))


def _draw_sources(random_: random.Random) -> tuple[tuple[str, float], ...]:
    """Draw two or three prompt sources, or one without a name."""
    number = random_.choice([1, 1, 2, 3])
    weights = [random_.choice([0.1, 1.0, 2.5, 3.0]) for _ in range(number)]
    return tuple((name, weight) for name, weight in zip(("words", "sums", "code"), weights, strict=False) if number > 1)


def _asynchronous(scenario: Scenario, random_: random.Random) -> Scenario:
    """Convert to asynchronous: the same job and machines without the techniques of rounds, and without loans."""
    experience = Experience(
        sampler=random_.choice(list(Sampler)),
        capacity=random_.choice([None, scenario.prompts, scenario.prompts + 1, 4 * scenario.prompts]),
        bound=random_.choice([None, None, 0, 1, 2]),
        repack_seconds=random_.choice([None, 0.5, 2.0]),
    )
    return _with_merges(
        replace(
            scenario,
            experience=experience,
            tail_factor=None,
            response_factor=None,
            auto=False,
            stream_training=False,
            profiles=False,
            site=replace(scenario.site, lendable=False, shares_accelerators=False),
        ),
        random.Random(f"{scenario.seed}/merges"),
    )


def _with_merges(scenario: Scenario, random_: random.Random) -> Scenario:
    """Merge replicas wherever they fit in two thirds of the jobs with episodes: in so small a job it rarely pays.

    Their updates are small and many, so that a released replica finds work, and three replicas have room."""
    if scenario.episodes is None or scenario.experience is None or scenario.edit or random_.random() < 0.33:
        return scenario
    site = scenario.site
    engine = replace(site.engine, kv_tokens=max(20_000, site.engine.kv_tokens), max_sequences=64)
    prompts, responses = min(3, scenario.prompts), min(3, scenario.responses)
    experience = replace(scenario.experience, repack_seconds=0.5, capacity=4 * prompts, bound=None)
    scenario = replace(scenario, rounds=6, prompts=prompts, responses=responses, machines=3)
    site = replace(site, engine=engine, replicas=1, wider=())
    return replace(scenario, experience=experience, adapt=_merging_what_fits, site=site)


def _merging_what_fits(settings: Settings) -> Settings:
    return replace(settings, repack_plan=merges_that_fit)


def _draw_rounds(seed: int) -> Scenario:
    random_ = random.Random(f"{seed}/scenario")
    responses = random_.choice([2, 3, 4, 8])
    rounds = random_.randint(1, 4)
    prompts = random_.randint(1, max(1, MOST_TRAJECTORIES // (responses * rounds)))
    step_seconds = random_.choice([0.005, 0.01])
    scenario = Scenario(
        seed=seed,
        machines=random_.choice([1, 2, 2, 3, 3, 4, 6, MOST_MACHINES]),
        rounds=rounds,
        prompts=prompts,
        responses=responses,
        prompts_an_epoch=random_.choice([prompts, prompts + 1, 3 * prompts, 1000]),
        checkpoint_every=random_.choice([1, 2, 3]),
        site=ClusterSpec(
            replicas=random_.choice([1, 1, 2, 4]),
            engine=EngineKind(
                latency=LatencyModel(((1, step_seconds), (64, 2 * step_seconds)), 1e-7, 0.02, 1e-5, 1e-9),
                kv_tokens=random_.choice([4_000, 20_000, 1_000_000]),
                max_sequences=random_.choice([4, 64]),
                stream_seconds=random_.choice([0.25, 1.0]),
                load_seconds=random_.choice([0.0, 0.5]),
            ),
            latency=random_.choice([0.001, 0.01]),
            hop_seconds=random_.choice([0.05, 0.5]),
            transfer_seconds=random_.choice([0.0, 2.0]),
        ),
        costs=TrainerCosts(
            start=random_.choice([0.0, 3.0]),
            step=random_.choice([0.5, 2.0]),
            token=random_.choice([0.0, 1e-4]),
            publish=random_.choice([0.0, 1.0]),
            checkpoint=random_.choice([0.0, 1.0]),
        ),
        workload=random_.choice(["rollpacker-7b-8k", "dapo-32b"]),
        reward_seconds=random_.choice([0.05, 1.0]),
        tail_factor=random_.choice([None, 1.0, 1.25, 1.5]),
        dynamic_sampling=random_.random() < 0.25,
        reward_levels=random_.choice([4, 1000]),
        stream_training=random_.random() < 0.5,
        auto=random_.random() < 0.25,
        first_responses=4,
    )
    # Later additions draw from separate streams, so that a seed's job does not change.
    for topic, with_more in _LATER.items():
        scenario = with_more(scenario, random.Random(f"{seed}/{topic}"))
    return scenario


def _with_layouts(scenario: Scenario, random_: random.Random) -> Scenario:
    """Permit all fitting TP sizes in half of the jobs whose machines have several replicas."""
    site = scenario.site
    engine, sizes = site.engine, [size for size in (2, 4) if site.replicas % size == 0]
    if not sizes or random_.random() < 0.5:
        return scenario
    wider = tuple((size, replace(engine, kv_tokens=3 * size * engine.kv_tokens)) for size in sizes)
    site = replace(site, wider=wider, layout_seconds=random_.choice([0.1, 1.0]))
    return replace(scenario, site=site, random_layout_changes=random_.random() < 0.75)


def _with_loans(scenario: Scenario, random_: random.Random) -> Scenario:
    """Permit loans in half of the jobs that may stream; training is slow enough in them for a loan to pay."""
    if not scenario.stream_training or scenario.machines < 2 or random_.random() < 0.5:
        return scenario
    token = random_.choice([20.0, 50.0]) / (scenario.prompts * scenario.responses * scenario.max_response_tokens)
    costs = replace(
        scenario.costs,
        token=token,
        loaned_token=token * random_.choice([0.05, 0.05, 1.0]),
        loan_start=random_.choice([0.0, 0.5]),
        bring=random_.choice([0.0, 0.5]),
    )
    site = replace(scenario.site, lendable=True, shares_accelerators=random_.random() < 0.5)
    return replace(scenario, site=site, costs=costs)


def _with_programs(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let rewards of a quarter of the jobs run programs under the adaptive timeout.

    Two rewards, right or wrong, are equal too often for dynamic sampling: such a job would find nothing to learn."""
    if (scenario.dynamic_sampling and scenario.responses < 3) or random_.random() < 0.75:
        return scenario
    programs = Programs(
        seconds=random_.choice([0.05, 1.0]),
        right_share=0.55,
        endless_share=random_.choice([0.0, 0.05]),
        timeout=TimeoutRule(
            minimum=random_.choice([0.1, 1.0]),
            maximum=random_.choice([2.0, 8.0]),
            shadow_share=random_.choice([0.02, 0.5]),
            seed=scenario.seed,
        ),
    )
    return replace(scenario, programs=programs)


def _with_response_factor(scenario: Scenario, random_: random.Random) -> Scenario:
    """Give half of the jobs with fixed factors another factor for responses, often 1."""
    if scenario.tail_factor is None or scenario.auto or random_.random() < 0.5:
        return scenario
    return replace(scenario, response_factor=random_.choice([1.0, 1.0, 1.25, 1.5]))


def _with_edit(scenario: Scenario, random_: random.Random) -> Scenario:
    """Add a user edit to a third of the jobs."""
    if random_.random() < 0.67:
        return scenario
    most_rounds = MOST_TRAJECTORIES // (scenario.prompts * scenario.responses)
    edit = draw_edit(random_, scenario.horizon, scenario.rounds, most_rounds, scenario.machines, MOST_MACHINES)
    return replace(scenario, edit=edit)


def _with_evaluations(scenario: Scenario, random_: random.Random) -> Scenario:
    """Add one or two evaluations to half of the jobs."""
    if random_.random() < 0.5:
        return scenario
    drawn = tuple(
        Evaluated(random_.randint(1, 6), random_.randint(1, 3), random_.choice([1, 1, 2]))
        for _ in range(random_.choice([1, 1, 2]))
    )
    return replace(scenario, evaluations=drawn)


def _with_switches(scenario: Scenario, random_: random.Random) -> Scenario:
    """Switch layouts inside the rounds of two thirds of the jobs that have several."""
    return replace(scenario, switches=bool(scenario.site.wider) and random_.random() < 0.67)


def _with_kv(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let the engines of half of the jobs that switch move KV, in some of them through too small a shared memory."""
    if not scenario.switches or random_.random() < 0.5:
        return scenario
    kv = KvSize(heads=2, head_bytes=1000, room_bytes=random_.choice([200_000, 1 << 30]))
    seconds = random_.choice([0.0, 1e-6])
    site = scenario.site
    wider = tuple((size, replace(engine, kv=kv, kv_byte_seconds=seconds)) for size, engine in site.wider)
    engine = replace(site.engine, kv=kv, kv_byte_seconds=seconds)
    return replace(scenario, site=replace(site, engine=engine, wider=wider))


def _with_profiles(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let machines of half of the jobs with several layouts measure them.

    Updates are long enough, and no evaluation keeps engines busy meanwhile. Random switches leave no size unknown."""
    if not scenario.site.wider or scenario.episodes is not None or random_.random() < 0.5:
        return scenario
    return _profiled(scenario, random_)


def _profiled(scenario: Scenario, random_: random.Random) -> Scenario:
    step = random_.choice([8.0, 20.0])
    tokens = scenario.prompts * scenario.responses * scenario.max_response_tokens
    token = min(scenario.costs.token, (MOST_UPDATE_SECONDS - step) / tokens)
    costs = replace(scenario.costs, step=step, token=token)
    site = replace(scenario.site, layout_seconds=1.0)
    switches = scenario.switches and random_.random() < 0.5
    scenario = replace(scenario, evaluations=(), best_model=None, switches=switches)
    scenario = replace(scenario, profiles=True, costs=costs, site=site)
    return _with_faster_sizes(scenario, random_)


def _with_faster_sizes(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let steps of wider engines take less time: otherwise the policy would never switch to them."""
    exponent = random_.choice([0.5, 0.9])
    site = scenario.site
    wider = tuple(
        (size, replace(engine, latency=engine.latency.scaled((site.tensor_parallel / size) ** exponent)))
        for size, engine in site.wider
    )
    return replace(scenario, site=replace(site, wider=wider))


def _with_prefill_budget(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let the engines of half of the jobs compute contexts in passes of about one response."""
    budget, site = random_.choice([None, scenario.max_response_tokens]), scenario.site
    wider = tuple((size, replace(engine, prefill_budget=budget)) for size, engine in site.wider)
    engine = replace(site.engine, prefill_budget=budget)
    return replace(scenario, site=replace(site, engine=engine, wider=wider))


def _with_best_model(scenario: Scenario, random_: random.Random) -> Scenario:
    """Keep the best model in half of the jobs with an evaluation, in some of them on a volume with little room."""
    if not scenario.evaluations or random_.random() < 0.5:
        return scenario
    best = BestModel(random_.choice(list(EvaluationMetric)), random_.choice([None, None, 1, 2]))
    return replace(scenario, best_model=best)


_HARNESS_FAULTS = tuple((fault, 25) for fault in HarnessFault)
"""Three in ten of the attempts in jobs with such faults. Those of an attempt are drawn in the order of `HarnessFault`,
so that a new fault takes its share from attempts without one."""


def _with_episodes(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let responses of a quarter of the jobs be episodes of one or two environments."""
    if random_.random() < 0.75:
        return scenario
    forks = random_.choice([None, None, 0, 1])
    tokens = random_.choice([None, None, 200])
    episodes = EpisodeScenario(
        environments=tuple(_draw_environment(scenario, random_) for _ in range(random_.choice([1, 1, 2]))),
        max_tokens=tokens,
        max_forks=forks,
    )
    # A harness that hangs holds its round for all of its time and the overtime, and several rounds may have one.
    return replace(scenario, episodes=episodes, patience_seconds=2 * scenario.patience_seconds)


def _with_versions(scenario: Scenario, random_: random.Random) -> Scenario:
    """Mix the weight versions of episodes in half of the jobs. It matters in mode Asynchronous only."""
    if scenario.episodes is None:
        return scenario
    versions = random_.choice(list(EpisodeVersions))
    return replace(scenario, episodes=replace(scenario.episodes, versions=versions))


def _with_states(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let runners of two thirds of the environments report the calls of tools, which have a state or none."""
    if scenario.episodes is None:
        return scenario

    def drawn(one: Environment) -> Environment:
        script = replace(one.harness, differing=random_.choice([0, 300]))
        return replace(one, harness=script, state=random_.choice([None, *EnvironmentState]))

    environments = tuple(map(drawn, scenario.episodes.environments))
    return replace(scenario, episodes=replace(scenario.episodes, environments=environments))


def _draw_environment(scenario: Scenario, random_: random.Random) -> Environment:
    script = HarnessScript(
        turns=random_.choice([1, 3, 6]),
        prompt_tokens=random_.choice([3, 40]),
        tool_tokens=random_.choice([1, 30]),
        tool_seconds=random_.choice([0.0, 0.2, 2.0]),
        turn_tokens=random_.choice([8, 200, 1000]),
        faults=random_.choice([(), _HARNESS_FAULTS]),
        seed=scenario.seed,
        rewards=random_.choice([0, scenario.reward_levels]),
        ends_when_cut=random_.random() < 0.5,
    )
    return Environment(script, max_turns=random_.choice([2, 16, 16]), seconds=random_.choice([20.0, 300.0]))


def _with_builds(scenario: Scenario, random_: random.Random) -> Scenario:
    """Let the first engine of each size take longer than the later ones, in half of the jobs with several sizes."""
    if not scenario.site.wider or random_.random() < 0.5:
        return scenario
    return replace(scenario, site=replace(scenario.site, build_seconds=random_.choice([1.0, 5.0])))


_LATER: dict[str, Callable[[Scenario, random.Random], Scenario]] = {
    "layouts": _with_layouts,
    "loans": _with_loans,
    "programs": _with_programs,
    "response-factor": _with_response_factor,
    "edits": _with_edit,
    "evaluations": _with_evaluations,
    "switches": _with_switches,
    "best-model": _with_best_model,
    "kv": _with_kv,
    "episodes": _with_episodes,
    "profiles": _with_profiles,
    "versions": _with_versions,
    "states": _with_states,
    "builds": _with_builds,
}


def plan_of(scenario: Scenario) -> FaultPlan:
    """Draw the faults of a seed's scenario."""
    site = scenario.site
    runners = 0 if scenario.episodes is None else scenario.episodes.runners
    return draw_plan(
        scenario.seed,
        scenario.machines,
        site.replicas,
        scenario.horizon,
        workers=site.lendable,
        runners=runners,
        layouts=bool(site.wider),
    )
