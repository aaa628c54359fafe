"""Evaluation work: the evaluations of one boundary while they are under way, and how a result is made of them."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.coordinator.core.settings import EvaluationSettings
from rljob_runtime.coordinator.generation.scoring import RewardRequests
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.store.evaluations import EvaluatedSample, OpenEvaluation
from rljob_runtime.evaluation import EvaluationResult, EvaluationTimes, SampleScore, summarize
from rljob_runtime.evaluation.result import Evaluated
from rljob_runtime.protocols import PromptSource
from rljob_runtime.protocols.rewards import terms_of
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.evaluation import EvaluationProgress, responses
from rljob_runtime.scheduling.reward_failure import RewardFailure


@dataclass
class EvaluationInProgress:
    """One evaluation: its settings, its prompts by record, and the samples that have their reward."""

    settings: EvaluationSettings
    prompts: tuple[int, ...]
    samples: list[EvaluatedSample]
    waited: float
    """Seconds for which training has waited."""

    @classmethod
    def of(cls, settings: EvaluationSettings, opened: OpenEvaluation, prompts: PromptSource) -> EvaluationInProgress:
        """Continue an evaluation as the store has it."""
        records = tuple(prompts.evaluation_prompts(settings.name))
        asked, most = set(records), settings.responses_per_prompt
        samples = [one for one in opened.samples if one.prompt in asked and one.sample < most]
        return cls(settings, records, samples, opened.waited)

    def uncounted(self, opened: OpenEvaluation) -> list[EvaluatedSample]:
        """Return the samples in the store that do not count any more."""
        counted = {(one.prompt, one.sample) for one in self.samples}
        return [one for one in opened.samples if (one.prompt, one.sample) not in counted]

    @property
    def complete(self) -> bool:
        """Whether every response has its reward or has failed."""
        return len(self.samples) == len(self.prompts) * self.settings.responses_per_prompt

    def missing(self, step: int) -> list[TrajectoryKey]:
        """Return the responses without a sample."""
        keys = responses(self.settings.name, step, self.prompts, self.settings.responses_per_prompt)
        known = {(sample.prompt, sample.sample) for sample in self.samples}
        return [key for key in keys if (key.prompt.index, key.sample) not in known]

    def result(self, step: int, version: int, times: EvaluationTimes) -> EvaluationResult:
        """Return the statistics of the samples, for the weights of this step."""
        scores: dict[int, list[SampleScore]] = {prompt: [] for prompt in self.prompts}
        for sample in sorted(self.samples, key=lambda sample: (sample.prompt, sample.sample)):
            if sample.reward is not None:
                cut = sample.finish == FinishReason.LENGTH
                scores[sample.prompt].append(SampleScore(sample.reward, sample.terms, sample.tokens, cut))
        settings = self.settings
        asked = Evaluated(settings.name, step, version, settings.responses_per_prompt, settings.pass_reward)
        return summarize(asked, scores, times)


@dataclass(frozen=True)
class EvaluationWork:
    """The evaluations of one step that have not ended, with their weights, responses and reward requests."""

    step: int
    version: int
    prompts: PromptSource
    open: dict[str, EvaluationInProgress]
    progress: EvaluationProgress
    receiver: TokenReceiver
    scoring: RewardRequests
    drawn: frozenset[PromptKey]
    """The prompts that are generated for them."""
    began: float
    """Time of the event loop."""


def sample_of(response: Response, reward: float | RewardFailure) -> EvaluatedSample:
    """Return the sample of a response."""
    key = response.key
    return EvaluatedSample(
        prompt=key.prompt.index,
        sample=key.sample,
        tokens=len(response.token_ids),
        finish=response.finish_reason.value,
        reward=None if isinstance(reward, RewardFailure) else float(reward),
        terms={} if isinstance(reward, RewardFailure) else terms_of(reward),
        reason=reward.reason if isinstance(reward, RewardFailure) else None,
    )
