"""CEL: validation rules of the API server, by the path of their object.

They repeat `rules` as far as a server can; a test compares the results case by case. Rules about changes are in
`cel_changes`. A server checks a rule against the default of its object too. A field whose name is a word of CEL is
written with underscores (`__function__`), as servers do.
"""

from __future__ import annotations

from rljob_api import constants as c
from rljob_api.admission.renamed import RENAMED, Renamed
from rljob_api.rules.algorithm import MAX_RESPONSES_PER_ROUND
from rljob_api.rules.evaluation import MAX_RESPONSES_PER_EVALUATION
from rljob_api.rules.job import MAX_ACCELERATORS, MAX_TOKENS_PER_SEQUENCE, MIN_HEARTBEAT_SECONDS
from rljob_api.schema.cel_changes import Rule
from rljob_api.schema.cel_environments import ENVIRONMENT_RULES
from rljob_api.spec.accelerators import DEFAULT_RESOURCE
from rljob_api.spec.rewards import BUILTIN, FORMER_BUILTIN, FUNCTION_KINDS


def _or_stored(expression: str, field: str, message: str) -> Rule:
    """Return the rule that `expression` is true, or the object's `field` has the value that is stored already.

    Ratcheting alone does not keep a stored object writable: servers compare no object with free-form content inside.
    """
    stored = f"oldSelf.hasValue() && has(oldSelf.value().{field})"
    return Rule(f"{expression} || ({stored} && oldSelf.value().{field} == self.{field})", message, optional_old=True)


_SLOTS = (
    "(self.acceleratorsPerMachine > 0 ? self.acceleratorsPerMachine"
    " : has(self.slotsPerMachine) ? self.slotsPerMachine : 1)"
)
_LARGEST = "(has(self.maxMachines) ? self.maxMachines : self.machines)"
_ONE_SOURCE = Rule(
    "(has(self.file) ? 1 : 0) + (has(self.dataset) ? 1 : 0) + (has(self.reasoningGym) ? 1 : 0) == 1",
    "must name exactly one source: file, dataset or reasoningGym",
)
_ONE_WAY = Rule(
    "(has(self.resource) ? 1 : 0) + (has(self.deviceClass) ? 1 : 0) + (has(self.claimTemplate) ? 1 : 0)"
    " + (has(self.kind) ? 1 : 0) == 1",
    "must have exactly one of resource, deviceClass, claimTemplate, or kind: None",
)

_NO_SOURCES = "!has(self.data.sources)"
_NO_REWARDS = "size(self.rewards) == 0"
"""Whether the spec has no rewards. Another rule then requires that every environment gives a reward."""
_GIVES_REWARD = "(has(e.reward) || e.kind != 'Tools')"
"""Whether environment e may give a reward."""
_SCORES = "(!has(s.rewards) || r.name in s.rewards)"
"""Whether rule r scores the responses of source or evaluation s."""

RULES: dict[str, list[Rule]] = {
    "": [
        Rule(
            f"size(self.metadata.name) <= {c.MAX_JOB_NAME_LENGTH}",
            f"metadata.name must have at most {c.MAX_JOB_NAME_LENGTH} characters: pods are named "
            "<name>-coordinator-0-<incarnation>",
        ),
        Rule(
            f"self.metadata.name.matches('{c.JOB_NAME_PATTERN}')",
            "metadata.name must be lower-case letters, digits and '-', begin with a letter and not end with '-': "
            "it names a Service",
        ),
    ],
    "spec": [
        Rule(
            "!has(self.experience.maxPrompts) || self.experience.maxPrompts >= self.algorithm.promptsPerRound",
            "experience.maxPrompts must be at least algorithm.promptsPerRound: an update takes that many",
        ),
        Rule(
            "!has(self.data.prompts) || has(self.data.prompts.reasoningGym)"
            " || !self.rewards.exists(r, r.kind == 'ReasoningGym')",
            "rewards of kind ReasoningGym need prompts from data.prompts.reasoningGym",
        ),
        Rule(
            f"{_NO_SOURCES} || self.data.sources.all(s, has(s.prompts.reasoningGym)"
            f" || !self.rewards.exists(r, r.kind == 'ReasoningGym' && {_SCORES}))",
            "data.sources: rewards of kind ReasoningGym need prompts from reasoningGym; name the others in rewards",
        ),
        Rule(
            f"{_NO_SOURCES} || self.data.sources.all(s, !has(s.rewards)"
            " || s.rewards.all(name, self.rewards.exists(r, r.name == name)))",
            "data.sources: rewards must be names of rules in spec.rewards",
        ),
        Rule(
            f"{_NO_SOURCES} || {_NO_REWARDS}"
            f" || self.data.sources.all(s, self.rewards.exists(r, r.weight != 0.0 && {_SCORES}))",
            "data.sources: rewards must hold a rule with a weight other than 0",
        ),
        Rule(
            "self.evaluation.all(s, s.prompts.heldOut || has(s.prompts.reasoningGym)"
            f" || !self.rewards.exists(r, r.kind == 'ReasoningGym' && {_SCORES}))",
            "evaluation: rewards of kind ReasoningGym need prompts from reasoningGym; name the others in rewards",
        ),
        Rule(
            "self.evaluation.all(s, !has(s.rewards) || s.rewards.all(name, self.rewards.exists(r, r.name == name)))",
            "evaluation: rewards must be names of rules in spec.rewards",
        ),
        Rule(
            f"{_NO_REWARDS} || self.evaluation.all(s, self.rewards.exists(r, r.weight != 0.0 && {_SCORES}))",
            "evaluation: rewards must hold a rule with a weight other than 0",
        ),
        Rule(
            f"{_NO_SOURCES} || self.data.sources.exists(s, !has(s.promptsPerRound))"
            " || self.data.sources.map(s, s.promptsPerRound).sum() == self.algorithm.promptsPerRound",
            "data.sources: promptsPerRound must add up to algorithm.promptsPerRound over all sources",
        ),
        Rule(
            f"{_NO_REWARDS} || self.rewards.exists(r, r.weight != 0.0)",
            "rewards must hold at least one weight other than 0",
        ),
        Rule(
            f"!({_NO_REWARDS}) || (size(self.environments) > 0 && self.environments.all(e, {_GIVES_REWARD}))",
            "rewards is required: how responses are scored; or a reward of each environment",
        ),
        Rule(
            "!self.rewards.exists(r, r.kind == 'Environment')"
            f" || (self.environments.exists(e, {_GIVES_REWARD})"
            f" && (!({_NO_SOURCES}) || self.environments.all(e, {_GIVES_REWARD})))",
            "rewards of kind Environment need environments that give a reward: a kind other than Tools, or a reward",
        ),
        Rule(
            "!has(self.episode) || size(self.environments) > 0",
            "episode needs environments; or leave it out",
        ),
        Rule(
            "!has(self.data.chatTemplateRenderer) || size(self.environments) > 0",
            "data.chatTemplateRenderer needs environments, whose episodes it writes; or leave it out",
        ),
        Rule(
            "!has(self.episode) || !has(self.episode.maxTokens)"
            " || self.episode.maxTokens <= self.data.maxPromptTokens + self.data.maxResponseTokens",
            "episode.maxTokens must be at most data.maxPromptTokens + data.maxResponseTokens: engines hold no more",
        ),
        Rule(
            "self.algorithm.maxTokensPerMicrobatch >= self.data.maxPromptTokens + self.data.maxResponseTokens",
            "algorithm.maxTokensPerMicrobatch must hold the longest sequence: data.maxPromptTokens + "
            "data.maxResponseTokens",
        ),
        Rule("self.algorithm.warmupRounds <= self.rounds", "algorithm.warmupRounds must be at most rounds"),
        Rule(
            "!has(self.algorithm.overlong.penaltyTokens)"
            " || self.algorithm.overlong.penaltyTokens <= self.data.maxResponseTokens",
            "algorithm.overlong.penaltyTokens must be at most data.maxResponseTokens",
        ),
        Rule(
            "has(self.data.heldOut) || !self.evaluation.exists(e, e.prompts.heldOut)",
            "evaluation[].prompts.heldOut needs data.heldOut, e.g. {fraction: 0.05}",
        ),
        Rule(
            "self.evaluation.all(e, !has(e.prompts.source)"
            f" || (!({_NO_SOURCES}) && self.data.sources.exists(s, s.name == e.prompts.source)))",
            "evaluation[].prompts.source must be the name of a source in data.sources",
        ),
        Rule(
            "!has(self.checkpoint.keepBest)"
            " || self.evaluation.exists(e, e.name == self.checkpoint.keepBest.evaluation)",
            "checkpoint.keepBest.evaluation must be the name of an evaluation of spec.evaluation",
        ),
        Rule(
            "self.evaluation.all(e, !has(e.sampling) || !has(e.sampling.maxResponseTokens)"
            " || e.sampling.maxResponseTokens <= self.data.maxResponseTokens)",
            "evaluation[].sampling.maxResponseTokens must be at most data.maxResponseTokens",
        ),
        Rule(
            "!has(self.adaptiveTensorParallel.sizes) || (has(self.rollout.allowedTensorParallelSizes) && "
            "self.adaptiveTensorParallel.sizes.all(size, size in self.rollout.allowedTensorParallelSizes))",
            "adaptiveTensorParallel.sizes must be sizes of rollout.allowedTensorParallelSizes: machines have engines "
            "of those",
        ),
        Rule(
            "!has(self.accelerator) || self.trainer.acceleratorsPerReplica > 0"
            " || self.rollout.acceleratorsPerMachine > 0",
            "accelerator is for pods with accelerators: set trainer.acceleratorsPerReplica or "
            "rollout.acceleratorsPerMachine, or leave it out",
        ),
        Rule(
            f"!has(self.accelerator) || self.scheduling.acceleratorResource == '{DEFAULT_RESOURCE}'"
            " || (has(self.accelerator.resource)"
            " && self.scheduling.acceleratorResource == self.accelerator.resource)",
            "scheduling.acceleratorResource must be left out: accelerator takes its place",
        ),
    ],
    "spec.adaptiveTensorParallel": [
        Rule(
            "!has(self.sizes) || size(self.sizes) > 1",
            "sizes must hold at least two sizes: there is nothing to switch to",
        ),
        Rule(
            "!has(self.sizes) || self.sizes.all(size, self.sizes.exists_one(same, same == size))",
            "sizes must be listed once",
        ),
    ],
    "spec.accelerator": [_ONE_WAY],
    "spec.trainer": [
        Rule(
            "!has(self.accelerator) || self.acceleratorsPerReplica > 0",
            "accelerator is for pods with accelerators: set acceleratorsPerReplica, or leave it out",
        ),
    ],
    "spec.trainer.accelerator": [_ONE_WAY],
    "spec.rollout.accelerator": [_ONE_WAY],
    "spec.data": [
        Rule("has(self.prompts) != has(self.sources)", "must have exactly one of prompts and sources"),
        Rule(
            "!has(self.sources) || self.sources.all(s, has(s.weight)) || self.sources.all(s, has(s.promptsPerRound))",
            "sources must all have weight, or all promptsPerRound",
        ),
        Rule("!has(self.systemPrompt) || self.chatTemplate", "systemPrompt needs chatTemplate: true"),
        Rule("!has(self.chatTemplateFile) || self.chatTemplate", "chatTemplateFile needs chatTemplate: true"),
        Rule("!has(self.chatTemplateArguments) || self.chatTemplate", "chatTemplateArguments needs chatTemplate: true"),
        Rule("!has(self.chatTemplateRenderer) || self.chatTemplate", "chatTemplateRenderer needs chatTemplate: true"),
        Rule(
            f"self.maxPromptTokens + self.maxResponseTokens <= {MAX_TOKENS_PER_SEQUENCE}",
            f"maxPromptTokens and maxResponseTokens must be at most {MAX_TOKENS_PER_SEQUENCE} together",
        ),
    ],
    "spec.data.prompts": [_ONE_SOURCE],
    "spec.evaluation[]": [
        Rule(
            f"self.maxPrompts * self.responsesPerPrompt <= {MAX_RESPONSES_PER_EVALUATION}",
            f"an evaluation has at most {MAX_RESPONSES_PER_EVALUATION} responses: maxPrompts x responsesPerPrompt is "
            "more",
        ),
    ],
    "spec.evaluation[].prompts": [
        Rule(
            "(has(self.file) ? 1 : 0) + (has(self.dataset) ? 1 : 0) + (has(self.reasoningGym) ? 1 : 0)"
            " + (self.heldOut ? 1 : 0) == 1",
            "must name exactly one source: file, dataset, reasoningGym or heldOut",
        ),
        Rule("!has(self.source) || self.heldOut", "source needs heldOut: true; else leave it out"),
    ],
    "spec.data.sources[]": [
        Rule("has(self.weight) != has(self.promptsPerRound)", "must have exactly one of weight and promptsPerRound"),
        Rule("self.prompts == oldSelf.prompts", "data.sources[].prompts is immutable; make a new RLJob"),
    ],
    "spec.data.sources[].prompts": [_ONE_SOURCE],
    **ENVIRONMENT_RULES,
    "spec.rewards[]": [
        Rule(
            "(self.kind == 'Judge') == has(self.judge)",
            "judge is required for kind Judge, with its url and model, and for no other kind",
        ),
        Rule("!has(self.code) || self.kind == 'Code'", "code is for kind Code only"),
        Rule(
            f"!has(self.parallelism) || self.kind in {list(FUNCTION_KINDS)}",
            f"parallelism is for kinds {', '.join(FUNCTION_KINDS)}; set code.parallelism or judge.parallelism instead",
        ),
        Rule(
            "!has(self.code) || !has(self.code.program) || self.code.program.contains('{response}')",
            "code.program must have {response} in it",
        ),
        Rule(
            "!has(self.judge) || !has(self.judge.prompt) || self.judge.prompt.contains('{response}')",
            "judge.prompt must have {response} in it",
        ),
        Rule(
            "(self.kind == 'Python') == has(self.__function__)",
            "function is required for kind Python, as module:function, and for no other kind",
        ),
        _or_stored(
            f"!has(self.__function__) || !self.__function__.startsWith('{FORMER_BUILTIN}')",
            "__function__",
            f"function {FORMER_BUILTIN}NAME has moved; write {BUILTIN}NAME",
        ),
    ],
    "spec.rewards[].range": [
        Rule("self.min < self.max", "min must be less than max"),
    ],
    "spec.rewards[].timeout": [
        Rule("self.minSeconds <= self.maxSeconds", "minSeconds must be at most maxSeconds"),
    ],
    "spec.algorithm": [
        Rule(
            f"self.promptsPerRound * self.responsesPerPrompt <= {MAX_RESPONSES_PER_ROUND}",
            f"a round holds at most {MAX_RESPONSES_PER_ROUND} responses: promptsPerRound x responsesPerPrompt is more",
        ),
        Rule("self.promptsPerRound % self.minibatches == 0", "minibatches must divide promptsPerRound"),
        Rule(
            "!has(self.advantage) || !(has(self.advantageBaseline) || has(self.normalizeAdvantagesByStd))",
            "advantage takes the place of advantageBaseline and normalizeAdvantagesByStd: leave them out",
        ),
        Rule("self.klPlacement != 'Reward' || self.klCoefficient > 0.0", "klPlacement: Reward needs klCoefficient"),
        Rule(
            "!has(self.learningRateSchedule.decayRounds) || self.learningRateSchedule.decayRounds > self.warmupRounds",
            "learningRateSchedule.decayRounds must be more than warmupRounds",
        ),
    ],
    "spec.algorithm.learningRateSchedule": [
        Rule(
            "(self.kind == 'Constant') != has(self.decayRounds)",
            "decayRounds is required for kinds Linear and Cosine, and for no other: the round in which the decay ends",
        ),
    ],
    "spec.streamTraining": [
        Rule("self.minCompleted <= self.maxCompleted", "minCompleted must be at most maxCompleted"),
    ],
    "spec.rollout": [
        Rule(
            "!has(self.accelerator) || self.acceleratorsPerMachine > 0",
            "accelerator is for machines with accelerators: set acceleratorsPerMachine, or leave it out",
        ),
        Rule("!has(self.minMachines) || self.minMachines <= self.machines", "minMachines must be at most machines"),
        Rule("!has(self.maxMachines) || self.maxMachines >= self.machines", "maxMachines must be at least machines"),
        Rule(
            f"{_LARGEST} * self.acceleratorsPerMachine <= {MAX_ACCELERATORS}",
            f"all machines together may have at most {MAX_ACCELERATORS} accelerators",
        ),
        Rule(
            "!has(self.allowedTensorParallelSizes) || self.tensorParallelSize in self.allowedTensorParallelSizes",
            "allowedTensorParallelSizes must hold tensorParallelSize: the choice starts with it",
        ),
        Rule(
            "!has(self.allowedTensorParallelSizes) || self.allowedTensorParallelSizes.all(size, "
            "self.allowedTensorParallelSizes.exists_one(same, same == size))",
            "allowedTensorParallelSizes must be listed once",
        ),
        Rule(
            f"!has(self.allowedTensorParallelSizes) || self.allowedTensorParallelSizes.all(size, {_SLOTS} % size == 0)",
            "allowedTensorParallelSizes must divide acceleratorsPerMachine: tensor parallelism stays inside a machine, "
            "and a machine without accelerators has slotsPerMachine (1 unless set)",
        ),
        Rule(
            "!has(self.allowedTensorParallelSizes) || self.allowedTensorParallelSizes.exists(least, "
            "self.allowedTensorParallelSizes.all(size, size % least == 0))",
            "allowedTensorParallelSizes must be multiples of the smallest: a larger replica replaces complete smaller "
            "ones",
        ),
        Rule(
            "!has(self.slotsPerMachine) || self.acceleratorsPerMachine == 0",
            "slotsPerMachine is for machines without accelerators",
        ),
        Rule(
            f"{_SLOTS} % self.tensorParallelSize == 0",
            "tensorParallelSize must divide acceleratorsPerMachine: tensor parallelism stays inside a machine, and a "
            "machine without accelerators has slotsPerMachine (1 unless set)",
        ),
    ],
    "spec.checkpoint": [
        Rule("!(has(self.volumeClaimName) && has(self.emptyDir))", "volumeClaimName and emptyDir exclude each other"),
    ],
    "spec.runPolicy": [
        Rule(
            "!has(self.startupDeadlineSeconds) || !has(self.activeDeadlineSeconds) || "
            "self.startupDeadlineSeconds <= self.activeDeadlineSeconds",
            "startupDeadlineSeconds must be at most activeDeadlineSeconds",
        ),
    ],
    "spec.failurePolicy.backoff": [
        Rule("self.initialSeconds <= self.maxSeconds", "initialSeconds must be at most maxSeconds"),
    ],
    "spec.relay": [
        Rule(
            f"self.heartbeatSeconds >= {MIN_HEARTBEAT_SECONDS}",
            f"heartbeatSeconds must be at least {MIN_HEARTBEAT_SECONDS}",
        ),
        Rule(
            "self.heartbeatSeconds * 2.0 <= self.rebuildTimeoutSeconds",
            "heartbeatSeconds must be at most half of rebuildTimeoutSeconds",
        ),
    ],
}


def _refuses(field: Renamed) -> Rule:
    """Refuse an earlier name, but for the default of earlier servers, and for a value that is stored already."""
    expression = f"!has(self.{field.old})"
    if field.default is not None:
        expression += f" || self.{field.old} == {field.default!r}"
    return _or_stored(expression, field.old, f"{field.old} {field.advice}")


for _renamed in RENAMED:
    RULES.setdefault(f"spec.{_renamed.parent}", []).append(_refuses(_renamed))
