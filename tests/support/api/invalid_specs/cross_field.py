"""Fields that are right alone and wrong together."""

from __future__ import annotations

from rljob_api.errors import ABSENT
from rljob_api.spec.rewards import CodeReward, JudgeReward
from tests.support.api.invalid_specs.case import Case, inside, one
from tests.support.api.invalid_specs.environments import CALC
from tests.support.api.invalid_specs.prompts import EVALUATION_CASES, SOURCE_CASES

JUDGE = {"url": "http://judge:8000/v1", "model": "j"}

CROSS_FIELD = [
    Case(
        {
            "spec.tailBatching": {"enabled": True, "promptFactor": 1.5},
            "spec.algorithm": {"promptsPerRound": 65536, "responsesPerPrompt": 12},
        },
        "spec.tailBatching.promptFactor",
        "98304 prompts x 15 responses would be launched, and a round holds at most 1048576",
        value=1.5,
        server=False,
    ),
    Case(
        {"spec.checkpoint.keepBest": {"evaluation": "gsm8k"}},
        "spec.checkpoint.keepBest.evaluation",
        "must be an evaluation of spec.evaluation: there is none",
        value="gsm8k",
    ),
    Case(
        {
            "spec.checkpoint.keepBest": {"evaluation": "gsm8k"},
            "spec.evaluation": [{"name": "held", "prompts": {"reasoningGym": {"task": "basic_arithmetic"}}}],
        },
        "spec.checkpoint.keepBest.evaluation",
        "must be an evaluation of spec.evaluation: held",
        value="gsm8k",
    ),
    one("spec.rollout.minMachines", 3, "must be at most machines (2)"),
    one("spec.rollout.maxMachines", 1, "must be at least machines (2)"),
    Case(
        {"spec.rollout.machines": 1024, "spec.rollout.acceleratorsPerMachine": 64},
        "spec.rollout.acceleratorsPerMachine",
        "must be at most 16",
    ),
    one("spec.rollout.tensorParallelSize", 2, "must divide acceleratorsPerMachine, or slotsPerMachine on CPUs"),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 2, "spec.rollout.allowedTensorParallelSizes": [2]},
        "spec.rollout.allowedTensorParallelSizes",
        "must hold tensorParallelSize (1): the choice starts with it",
    ),
    inside(
        "spec.rollout.allowedTensorParallelSizes",
        [1, 2],
        "spec.rollout.allowedTensorParallelSizes[1]",
        2,
        "must divide acceleratorsPerMachine, or slotsPerMachine on CPUs (neither is set: 1)",
    ),
    Case(
        {"spec.rollout.slotsPerMachine": 4, "spec.rollout.allowedTensorParallelSizes": [1, 3]},
        "spec.rollout.allowedTensorParallelSizes[1]",
        "must divide slotsPerMachine (4): tensor parallelism stays inside a machine",
        value=3,
    ),
    inside(
        "spec.rollout.allowedTensorParallelSizes",
        [1, 1],
        "spec.rollout.allowedTensorParallelSizes[1]",
        1,
        "must be listed once",
    ),
    Case(
        {
            "spec.rollout.acceleratorsPerMachine": 6,
            "spec.rollout.tensorParallelSize": 2,
            "spec.rollout.allowedTensorParallelSizes": [2, 3],
        },
        "spec.rollout.allowedTensorParallelSizes[1]",
        "must be a multiple of the smallest of them (2)",
        value=3,
    ),
    Case(
        {"spec.rollout.slotsPerMachine": 4, "spec.rollout.tensorParallelSize": 3},
        "spec.rollout.tensorParallelSize",
        "must divide slotsPerMachine (4): tensor parallelism stays inside a machine",
    ),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 8, "spec.rollout.slotsPerMachine": 8},
        "spec.rollout.slotsPerMachine",
        "is for machines without accelerators",
    ),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 8, "spec.rollout.tensorParallelSize": 3},
        "spec.rollout.tensorParallelSize",
        "must divide acceleratorsPerMachine (8)",
    ),
    one("spec.algorithm.minibatches", 3, "must divide promptsPerRound (128)"),
    Case(
        {"spec.algorithm.promptsPerRound": 65_536, "spec.algorithm.responsesPerPrompt": 1024},
        "spec.algorithm.promptsPerRound",
        "must be at most 1024: a round holds at most 1048576 responses",
    ),
    one("spec.algorithm.maxTokensPerMicrobatch", 512, "must hold the longest sequence: at least 2048"),
    one("spec.algorithm.warmupRounds", 25, "must be at most rounds (24)"),
    inside(
        "spec.algorithm",
        {"advantage": "mine:own", "advantageBaseline": "GroupMean"},
        "spec.algorithm.advantageBaseline",
        "GroupMean",
        "must be left out: advantage takes its place",
    ),
    inside(
        "spec.algorithm",
        {"advantage": "mine:own", "normalizeAdvantagesByStd": False},
        "spec.algorithm.normalizeAdvantagesByStd",
        False,
        "must be left out: advantage takes its place",
    ),
    one("spec.algorithm.klPlacement", "Reward", "needs klCoefficient above 0"),
    one(
        "spec.algorithm.overlong.penaltyTokens",
        100_000,
        "must be at most data.maxResponseTokens",
    ),
    one("spec.algorithm.learningRateSchedule.decayRounds", 9, "is for kinds Linear and Cosine only"),
    inside(
        "spec.algorithm.learningRateSchedule",
        {"kind": "Cosine"},
        "spec.algorithm.learningRateSchedule.decayRounds",
        ABSENT,
        "is required for kind Cosine: the round in which the decay ends, e.g. 24",
    ),
    Case(
        {"spec.algorithm.learningRateSchedule": {"kind": "Linear", "decayRounds": 5}, "spec.algorithm.warmupRounds": 5},
        "spec.algorithm.learningRateSchedule.decayRounds",
        "must be more than warmupRounds (5)",
        value=5,
    ),
    Case(
        {
            "spec.data.maxPromptTokens": 1 << 20,
            "spec.data.maxResponseTokens": 8,
            "spec.algorithm.maxTokensPerMicrobatch": 1 << 21,
        },
        "spec.data.maxResponseTokens",
        "must be at most 1048576 together with maxPromptTokens (1048576)",
    ),
    inside("spec.data.prompts", {}, "spec.data.prompts", ABSENT, "must name exactly one source"),
    *SOURCE_CASES,
    *EVALUATION_CASES,
    inside(
        "spec.data.prompts.file",
        {"path": "/a"},
        "spec.data.prompts",
        "file, reasoningGym",
        "must name exactly one source",
    ),
    Case(
        {"spec.data.systemPrompt": "Think.", "spec.data.chatTemplate": False},
        "spec.data.systemPrompt",
        "needs spec.data.chatTemplate: true",
    ),
    Case(
        {"spec.data.chatTemplateFile": "/a.jinja", "spec.data.chatTemplate": False},
        "spec.data.chatTemplateFile",
        "needs spec.data.chatTemplate: true",
    ),
    Case(
        {"spec.data.chatTemplateArguments": {"enable_thinking": False}, "spec.data.chatTemplate": False},
        "spec.data.chatTemplateArguments",
        "needs spec.data.chatTemplate: true",
    ),
    Case(
        {
            "spec.environments": [CALC],
            "spec.data.chatTemplateRenderer": "qwen3",
            "spec.data.chatTemplate": False,
        },
        "spec.data.chatTemplateRenderer",
        "needs spec.data.chatTemplate: true",
    ),
    Case(
        {"spec.data.chatTemplateRenderer": "qwen3", "spec.data.chatTemplate": True},
        "spec.data.chatTemplateRenderer",
        "needs spec.environments, whose episodes it writes",
    ),
    one("spec.data.chatTemplateRenderer", "qwen4", "qwen3"),
    inside(
        "spec.data.chatTemplateArguments",
        {"tokenize": True},
        "spec.data.chatTemplateArguments.tokenize",
        True,
        "must be left out: the job sets it",
        server=False,
    ),
    one("spec.data.chatTemplateFile", "chat.jinja", "must be an absolute path such as /data/chat.jinja"),
    one("spec.data.chatTemplateFile", "hf://org/name", "must be an absolute path such as /data/chat.jinja"),
    one("spec.data.chatTemplateArguments", [1], "must be an object"),
    Case(
        {"spec.rewards[1]": {"name": "right", "kind": "Math"}}, "spec.rewards[1].name", "must be unique", value="right"
    ),
    one("spec.rewards[0].function", "m:f", "is for kind Python only"),
    Case(
        {
            "spec.rewards[0].kind": "Python",
            "spec.rewards[0].function": "rljob_runtime.rewards.scorers:has_number",
        },
        "spec.rewards[0].function",
        "has moved; write rljob_runtime.rewards.builtin:has_number",
        value="rljob_runtime.rewards.scorers:has_number",
    ),
    inside("spec.rewards[0].kind", "Python", "spec.rewards[0].function", ABSENT, "is required for kind Python"),
    Case(
        {"spec.data.prompts": {"file": {"path": "/a"}}},
        "spec.rewards[0].kind",
        "needs prompts from spec.data.prompts.reasoningGym",
        value="ReasoningGym",
    ),
    inside("spec.rewards[0].weight", 0, "spec.rewards", 0, "must hold at least one weight other than 0"),
    inside("spec.rewards[0].kind", "Judge", "spec.rewards[0].judge", ABSENT, "is required for kind Judge"),
    inside(
        "spec.rewards[0].judge", JUDGE, "spec.rewards[0].judge", JudgeReward(**JUDGE).to_dict(), "is for kind Judge"
    ),
    inside("spec.rewards[0].code", {}, "spec.rewards[0].code", CodeReward().to_dict(), "is for kind Code only"),
    Case(
        {"spec.rewards[0]": {"name": "c", "kind": "Code", "code": {"program": "print(7)"}}},
        "spec.rewards[0].code.program",
        "must have {response} in it",
        value="print(7)",
    ),
    Case(
        {"spec.rewards[0]": {"name": "j", "kind": "Judge", "judge": JUDGE | {"prompt": "How good is {answer}?"}}},
        "spec.rewards[0].judge.prompt",
        "must have {response} in it",
        value="How good is {answer}?",
    ),
    *(
        inside(
            "spec.rewards[0]",
            {"name": "j", "kind": "Judge", "judge": {"model": "j", "url": url}},
            "spec.rewards[0].judge.url",
            url,
            "must be http:// or https://, a host",
        )
        for url in (
            "judge.example/v1",
            "https://user:key@judge/v1",
            "https://judge/v1?key=1",
            "file:///etc/passwd",
            "http://judge:70000",
        )
    ),
    one("spec.rewards[0].timeout.minSeconds", 60, "must be at most maxSeconds (30)"),
    one("spec.rewards[0].range.min", 1e6, "must be less than max (1e+06)"),
    one("spec.rewards[0].range.max", 2e9, "must be at most 1000000000"),
    one("spec.rewards[0].parallelism", 0, "must be at least 1"),
    one("spec.rewards[0].parallelism", 257, "must be at most 256"),
    Case(
        {"spec.rewards[0]": {"name": "c", "kind": "Code", "parallelism": 2}},
        "spec.rewards[0].parallelism",
        "is for kinds Math, ReasoningGym, Python; set code.parallelism instead",
        value=2,
    ),
    Case(
        {"spec.streamTraining.enabled": True, "spec.algorithm.minibatches": 2},
        "spec.streamTraining.enabled",
        "must be false while algorithm.minibatches is 2",
        server=False,
    ),
    one("spec.streamTraining.minCompleted", 0.8, "must be at most maxCompleted (0.5)"),
    Case(
        {"spec.checkpoint.volumeClaimName": "claim", "spec.checkpoint.emptyDir": {}},
        "spec.checkpoint.emptyDir",
        "excludes volumeClaimName",
    ),
    Case(
        {"spec.runPolicy.startupDeadlineSeconds": 900, "spec.runPolicy.activeDeadlineSeconds": 600},
        "spec.runPolicy.startupDeadlineSeconds",
        "must be at most activeDeadlineSeconds (600)",
    ),
    one("spec.failurePolicy.backoff.initialSeconds", 301, "must be at most maxSeconds (300)"),
    one("spec.experience.maxPrompts", 127, "must be at least algorithm.promptsPerRound (128)"),
    Case(
        {"spec.mode": "Asynchronous", "spec.tailBatching.enabled": True},
        "spec.tailBatching.enabled",
        "must be false in mode Asynchronous",
        value=True,
        server=False,
    ),
    Case(
        {"spec.mode": "Asynchronous", "spec.streamTraining.enabled": "Auto"},
        "spec.streamTraining.enabled",
        "must be false in mode Asynchronous",
        value="Auto",
        server=False,
    ),
    one("spec.relay.heartbeatSeconds", 6, "must be at most half of rebuildTimeoutSeconds (10)"),
]
