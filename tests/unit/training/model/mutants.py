"""Mutants of rljob_runtime.training.model."""

from hack.mutants import Mutant

FAMILIES = "tests/unit/training/model/test_families.py"
SHARDING = "tests/unit/training/model/test_sharding.py"
TOKEN_LOGPROBS = "tests/unit/training/model/test_token_logprobs.py"

MUTANTS = (
    Mutant(
        name="a segment sees its prefix only",
        target="rljob_runtime.training.model.attention:_attention_by_segment",
        before="(key[:, :, seen], k)",
        after="(key[:, :, seen], torch.zeros_like(k))",
        tests=(
            (
                "tests/unit/training/step/test_gradients.py::test_any_split_gives_the_gradient_of_the_naive_"
                "implementation[3-no std, tight clip-float64]"
            ),
        ),
    ),
    Mutant(
        name="a window is a token too wide",
        target="rljob_runtime.training.model.attention:_band",
        before="offset - window + 1",
        after="offset - window",
        tests=(f"{FAMILIES}::test_a_family_is_computed_as_its_model_computes_it[mistral, window]",),
    ),
    Mutant(
        name="ranks on processors keep a narrow copy of the whole model each",
        target="rljob_runtime.training.model.memory:recomputes_activations",
        before='device != "cpu" or ranks > 1',
        after='device != "cpu" or ranks > 8',
        tests=(f"{SHARDING}::test_layers_are_computed_again_where_memory_is_scarce",),
    ),
    Mutant(
        name="the rate falls during warm-up",
        target="rljob_runtime.training.model.optimizer:learning_rate",
        before="max(1, config.warmup_steps)",
        after="1",
        tests=("tests/unit/training/model/test_schedule.py::test_it_rises_to_the_rate_and_then_falls_to_its_share",),
    ),
    Mutant(
        name="narrow copies of all weights are kept until a pass ends",
        target="rljob_runtime.training.model.policy:Policy.logprobs",
        before="cache_enabled=False",
        after="cache_enabled=True",
        tests=(f"{SHARDING}::test_narrow_copies_of_weights_live_no_longer_than_their_layer",),
    ),
    Mutant(
        name="layers are computed again in training mode",
        target="rljob_runtime.training.model.policy:Policy.enable_checkpointing",
        before="decoder_layers(self.model)",
        after="decoder_layers(self.model.train())",
        tests=(f"{FAMILIES}::test_layers_that_are_computed_again_give_the_same[opt]",),
    ),
    Mutant(
        name="what is outside of layers stays whole after a pass that no backward pass follows",
        target="rljob_runtime.training.model.sharding:_reshard_after_forward",
        before="not torch.is_grad_enabled()",
        after="torch.is_grad_enabled()",
        tests=(f"{SHARDING}::test_parameters_are_shards_after_a_pass_that_no_backward_pass_follows",),
    ),
    Mutant(
        name="logprobs of a chunk forget the targets of its rows",
        target="rljob_runtime.training.model.token_logprobs:_TokenLogprobs.backward",
        before="rows < chunk.stop",
        after="rows < chunk.stop - 1",
        tests=(TOKEN_LOGPROBS,),
    ),
    Mutant(
        name="what other rows aim at is added to a chunk's edge",
        target="rljob_runtime.training.model.token_logprobs:_TokenLogprobs.backward",
        before="torch.where(own, gradient, 0.0)",
        after="gradient",
        tests=(TOKEN_LOGPROBS,),
    ),
    Mutant(
        name="an entropy bonus has no gradient",
        target="rljob_runtime.training.model.token_logprobs:_TokenLogprobs.backward",
        before="of_entropy[chunk, None]",
        after="0 * of_entropy[chunk, None]",
        tests=(f"{TOKEN_LOGPROBS}::test_the_entropys_gradient_is_that_of_a_log_softmax",),
    ),
    Mutant(
        name="rows are not compared with the plain model",
        target="rljob_runtime.training.model.verification:_compare",
        before="worst > LIMIT",
        after="worst > 1e9",
        tests=(f"{FAMILIES}::test_a_window_that_is_forgotten_is_measured[mistral, window]",),
    ),
)
