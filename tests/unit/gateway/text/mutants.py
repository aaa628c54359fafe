"""Mutants of rljob_runtime.gateway.text."""

from hack.mutants import Mutant

KNOWN = "tests/unit/gateway/text/test_known_templates.py"
RENDERERS = "tests/unit/gateway/text/test_renderers.py"
TEXT = "tests/unit/gateway/text/test_suffix_text.py"
TOOL_CALLS = "tests/unit/gateway/text/test_tool_calls.py"

MUTANTS = (
    Mutant(
        name="a call without an end is a call",
        target="rljob_runtime.gateway.text.tool_calls:parse_tool_calls",
        before="break",
        after="end = len(text)",
        tests=(f"{TOOL_CALLS}::test_calls_of_a_text",),
    ),
    Mutant(
        name="a template that strips earlier turns is append-only",
        target="rljob_runtime.gateway.text.append_only:_check",
        before="not after.startswith(written)",
        after="not after.startswith(before[:1])",
        tests=(f"{TEXT}::test_a_template_that_changes_earlier_turns_is_refused",),
    ),
    Mutant(
        name="words of a tool end its turn",
        target="rljob_runtime.gateway.text.suffix_text:SuffixText._text",
        before="self._plain.guarded(self._shown(message))",
        after="self._shown(message)",
        tests=(f"{TEXT}::test_words_of_a_message_become_no_token_of_the_template",),
    ),
    Mutant(
        name="the end of a turn stands twice",
        target="rljob_runtime.gateway.text.suffix_text:SuffixText.following",
        before="del tail[0]",
        after="pass",
        tests=(f"{TEXT}::test_a_next_turn_keeps_sampled_tokens_and_the_templates_text",),
    ),
    Mutant(
        name="a mark is set once in overlapping words",
        target="rljob_runtime.gateway.text.plain_text:PlainText._marked",
        before="place = found.start() + 1",
        after="place = found.start() + 1\nself._added = None",
        tests=(f"{TEXT}::test_any_text_is_encoded_without_an_added_token_and_decodes_to_itself",),
    ),
    Mutant(
        name="a renderer drops the reasoning of earlier turns",
        target="rljob_runtime.gateway.text.known_text:KnownText.__init__",
        before="type(config)(thinking_retention=KEPT_REASONING)",
        after="config",
        tests=(f"{KNOWN}::test_a_turn_goes_on_with_its_reasoning_as_it_was_sampled",),
    ),
    Mutant(
        name="a text may take any time to be read",
        target="rljob_runtime.gateway.text.forked_text:_Supervisor._read",
        before="signal.setitimer(signal.ITIMER_PROF, self._seconds)",
        after="pass",
        tests=(
            "tests/unit/gateway/text/test_forked_text.py::test_a_text_that_costs_too_much_is_given_up_and_the_next_one_is_read",
        ),
    ),
    Mutant(
        name="a text that no reader had is given up",
        target="rljob_runtime.gateway.text.forked_text:_Supervisor.run",
        before="(number := _decoded(request).fields['id']) == int.from_bytes(self._number[:], 'big')",
        after="(number := _decoded(request).fields['id']) > 0",
        tests=(
            "tests/unit/gateway/text/test_forked_text.py::test_a_reader_that_dies_between_two_requests_answers_for_none",
        ),
    ),
    Mutant(
        name="a gateway waits for a reader for ever",
        target="rljob_runtime.gateway.text.forked_text:_Reader.__init__",
        before="self._socket.settimeout(MOST_SECONDS)",
        after="pass",
        tests=("tests/unit/gateway/text/test_forked_text.py::test_a_gateway_whose_reader_never_answers_ends",),
    ),
    Mutant(
        name="half of an answer is passed on",
        target="rljob_runtime.gateway.text.forked_text:_Kept.asked",
        before="return None",
        after="return b'half' * 9",
        tests=(
            "tests/unit/gateway/text/test_forked_text.py::test_a_reader_killed_while_sending_leaves_no_partial_answer",
        ),
    ),
    Mutant(
        name="arguments of a known template are not looked at",
        target="rljob_runtime.gateway.text.known_text:KnownText._call",
        before="parse_object(arguments) is None",
        after="False",
        tests=(
            "tests/unit/gateway/text/test_known_templates.py::test_arguments_that_no_message_can_carry_are_no_call",
        ),
    ),
    Mutant(
        name="the renderer of the job is not used",
        target="rljob_runtime.gateway.text.known_text:renderer_of",
        before="named or (known_renderer(model) if model is not None and own_template else None)",
        after="known_renderer(model) if model is not None and own_template else None",
        tests=(f"{RENDERERS}::test_the_job_names_the_renderer_of_a_model_that_is_not_known",),
    ),
    Mutant(
        name="a template of the job is written as the model's own",
        target="rljob_runtime.gateway.text.known_text:renderer_of",
        before="model is not None and own_template",
        after="model is not None",
        tests=("tests/unit/gateway/text/test_known_templates.py::test_the_renderer_of_a_job",),
    ),
    Mutant(
        name="a download that fails ends the job",
        target="rljob_runtime.gateway.text.known_text:KnownText.__init__",
        before="WRONG",
        after="Exception",
        tests=(f"{RENDERERS}::test_a_download_that_fails_says_nothing_of_the_tokenizer",),
    ),
    Mutant(
        name="gpt-oss must write what its template approximates",
        target="rljob_runtime.gateway.text.renderer_check:check_renderer",
        before="text.name in DOWNLOADS",
        after="False",
        tests=(f"{RENDERERS}::test_a_renderer_of_a_trained_format_is_not_compared_with_a_template",),
    ),
    Mutant(
        name="a renderer may write another text than the template",
        target="rljob_runtime.gateway.text.open_text:open_text",
        before="check_renderer(text, tokenizer, render)",
        after="pass",
        tests=(f"{RENDERERS}::test_a_renderer_that_does_not_fit_opens_no_text",),
    ),
    Mutant(
        name="tools may be written in another way",
        target="rljob_runtime.gateway.text.renderer_check:check_renderer",
        before="((), (PROBE_TOOL,))",
        after="((),)",
        tests=(f"{RENDERERS}::test_a_renderer_that_writes_another_text_is_refused",),
    ),
    Mutant(
        name="a prompt may have an empty reasoning of its own",
        target="rljob_runtime.gateway.text.renderer_check:check_renderer",
        before="messages in HISTORIES",
        after="True",
        tests=(f"{RENDERERS}::test_a_renderer_that_writes_another_text_is_refused",),
    ),
    Mutant(
        name="a renderer does not know the model's name",
        target="rljob_runtime.gateway.text.known_text:_Encoder.__init__",
        before="tokenizer.name_or_path if model is None else model",
        after="tokenizer.name_or_path",
        tests=(f"{RENDERERS}::test_sizes_of_a_family_are_told_apart_by_the_models_name",),
    ),
)
