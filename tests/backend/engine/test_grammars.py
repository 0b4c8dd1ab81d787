"""Grammars in the engine, with the embedded model: every finished output obeys, whatever else is going on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from backend.config import SpeculativeConfig
from backend.engine.engine import Engine
from backend.errors import RequestError
from backend.structured.compiler import GrammarCompiler
from backend.structured.sandbox import SandboxLimits
from backend.types import DraftOptions, GrammarSpec, Request, StepOutput
from tests.backend.engine.driving import run
from tests.backend.structured.letters import AMBIGUOUS
from tests.backend.structured.pico import PICO, Pico
from tests.backend.structured.schemas import HANDWRITTEN, Schema, closed, corpus, huge_enum

QUESTION = "Give me the data as JSON."
PERSON = closed({"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}})


@pytest.fixture(scope="module")
def pico() -> Iterator[Pico]:
    found = Pico()
    yield found
    found.compiler.close()


def spec(schema: Schema, **more: Any) -> GrammarSpec:  # noqa: ANN401
    return GrammarSpec(kind="json_schema", text=json.dumps(schema), is_exact=True, **more)


def token_ids(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def reasons(found: dict[str, list[StepOutput]]) -> set[str | None]:
    return {outputs[-1].finish_reason for outputs in found.values()}


def people(pico: Pico, **params: object) -> list[Request]:
    """Requests of all kinds, half of them with a grammar."""
    grammars = [spec(PERSON), None, GrammarSpec(kind="choice", text='["yes", "no, never"]'), None] * 2
    return [
        pico.request(f"{i}", f"What is {i} + 4?", grammar, seed=i, temperature=i % 3, max_tokens=40, **params)
        for i, grammar in enumerate(grammars)
    ]


def test_every_finished_output_parses_and_validates(pico: Pico) -> None:
    schemas = corpus(200)
    requests = [
        pico.request(f"{i}", QUESTION, spec(schema), temperature=2.0, seed=i, max_tokens=72)
        for i, schema in enumerate(schemas)
    ]
    requests += [
        pico.request(f"greedy {i}", QUESTION, spec(schema), max_tokens=72)
        for i, schema in enumerate(HANDWRITTEN)
    ]
    found = run(pico.engine(max_running=64, num_pages=512), requests)
    finished = 0
    for request in requests:
        outputs = found[request.request_id]
        assert outputs[-1].finish_reason in ("stop", "length"), outputs[-1].error
        if outputs[-1].finish_reason == "stop":
            assert request.grammar is not None
            jsonschema.validate(json.loads(pico.text(outputs)), json.loads(request.grammar.text))
            finished += 1
    assert finished > 0.6 * len(requests), f"only {finished} of {len(requests)} came to an end"


def test_a_hostile_grammar_fails_alone_while_others_stream(pico: Pico) -> None:
    compiler = GrammarCompiler(PICO, pico.vocab_size, [2], SandboxLimits(time_s=0.5))
    others = people(pico)
    alone = run(pico.engine(), others)
    engine = pico.engine(compiler=compiler)
    hostile = pico.request("hostile", QUESTION, spec(huge_enum(9000), param="guided_json"))
    found = run(engine, [hostile, *others])
    (failed,) = found.pop("hostile")
    assert (failed.finish_reason, failed.error_param) == ("error", "guided_json")
    assert "takes longer" in failed.error
    assert {name: token_ids(outputs) for name, outputs in found.items()} == {
        name: token_ids(outputs) for name, outputs in alone.items()
    }
    compiler.close()


def test_a_grammar_that_could_not_be_tried_out_may_be_sent_again(
    pico: Pico, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(PICO, pico.vocab_size, [2])
    monkeypatch.setattr("backend.structured.sandbox._MODULE", "backend.structured.absent")
    engine = pico.engine(compiler=compiler)
    (failed,) = run(engine, [pico.request("r", QUESTION, spec({"type": "integer"}))])["r"]
    assert (failed.finish_reason, failed.error_param) == ("error", "") and failed.retry_after_s > 0
    assert "could not be tried out" in failed.error
    compiler.close()


def test_an_ambiguous_grammar_fails_alone_while_others_stream(pico: Pico) -> None:
    others = people(pico)
    alone = run(pico.engine(), others)
    engine = pico.engine(speculative=SpeculativeConfig(drafter="ngram", adaptive=False))
    ambiguous = GrammarSpec(kind="lark", text=AMBIGUOUS, param="guided_grammar")
    hostile = pico.request("hostile", QUESTION, ambiguous, max_tokens=900, min_tokens=900)
    found = run(engine, [hostile, *others])
    last = found.pop("hostile")[-1]
    assert (last.finish_reason, last.error_param, last.token_ids) == ("error", "guided_grammar", [])
    assert "takes too long" in last.error
    assert {name: token_ids(outputs) for name, outputs in found.items()} == {
        name: token_ids(outputs) for name, outputs in alone.items()
    }


def test_a_waiting_sequence_holds_up_nobody_and_can_be_aborted(pico: Pico) -> None:
    compiler = GrammarCompiler(PICO, pico.vocab_size, [2], SandboxLimits(time_s=5))
    engine = pico.engine(max_running=1, compiler=compiler)
    engine.add(pico.request("slow", QUESTION, spec(huge_enum(9000))))
    engine.add(pico.request("plain", "What is 3 + 4?", None))
    names: list[str] = []
    while not names or names[-1] != "plain":
        names += [output.request_id for output in engine.step() if output.finish_reason]
    assert names == ["plain"] and engine.has_work
    assert engine.abort("slow") and not engine.has_work
    engine.scheduler.check_invariants()
    compiler.close()


def test_few_pages_and_prefix_hits_change_nothing(pico: Pico) -> None:
    long = spec(closed({"text": {"type": "string", "minLength": 80}}))
    requests = [pico.request(f"{i}", QUESTION, long, seed=i, temperature=i, max_tokens=60) for i in range(4)]
    roomy = run(pico.engine(), requests)
    tight = pico.engine(num_pages=9, max_running=4)
    cramped = run(tight, requests)
    assert tight.scheduler.preemptions_total > 0
    again = run(tight, requests)
    assert again["0"][0].num_cached_tokens > 0
    for name, outputs in roomy.items():
        assert token_ids(cramped[name]) == token_ids(again[name]) == token_ids(outputs)


def test_forced_tokens_are_jumped_over_without_a_change(pico: Pico) -> None:
    requests = people(pico)
    engine = pico.engine()
    jumped = run(engine, requests)
    engine = pico.engine()
    engine.speculator.constraint = None
    stepped = run(engine, requests)
    for name, outputs in stepped.items():
        assert token_ids(jumped[name]) == token_ids(outputs)
        assert jumped[name][-1].finish_reason == outputs[-1].finish_reason
    assert sum(output.num_accepted for output in jumped["0"]) > 3
    assert len(jumped["0"]) < len(stepped["0"])


def test_a_step_reports_what_its_grammars_took_and_gave(pico: Pico) -> None:
    compiler = GrammarCompiler(PICO, pico.vocab_size, [2])
    engine = pico.engine(compiler=compiler)
    reports = []
    for _ in range(2):
        engine.add(pico.request("a", QUESTION, spec(PERSON), max_tokens=40))
        engine.add(pico.request("plain", QUESTION, None, max_tokens=40))
        forced = 0
        while engine.has_work:
            forced += sum(output.num_accepted for output in engine.step() if output.request_id == "a")
            if engine.last_report is not None:
                reports.append(engine.last_report.grammars)
    grammars = [report for report in reports if report is not None]
    assert len([seconds for report in grammars for seconds in report.compile_s]) == 1, "once for equal ones"
    assert all(report.mask_s < 1 for report in grammars) and sum(report.mask_s > 0 for report in grammars) > 9
    assert forced <= sum(report.num_forced_tokens for report in grammars) <= 2 * 40
    compiler.close()


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_resumed_at_any_cut_a_grammar_goes_on(pico: Pico, drafter: str) -> None:
    asked = people(pico, logprobs=1)
    thinks = spec(PERSON, thought="whole", max_thought_tokens=6)
    asked.append(pico.request("thinks", QUESTION, thinks, max_tokens=40, seed=4, temperature=1.0))
    whole = run(pico.engine(dtype="float32"), asked)
    again, wanted = [], {}
    for request in asked:
        tokens = token_ids(whole[request.request_id])
        for cut in range(min(len(tokens) + 1, 40)):
            if cut == len(tokens) and whole[request.request_id][-1].stop_token_id is None:
                break  # the last token ended it
            name = f"{request.request_id}/{cut}"
            again.append(msgspec.structs.replace(request, request_id=name, resume_token_ids=tokens[:cut]))
            wanted[name] = tokens[cut:]
    speculative = SpeculativeConfig(drafter=drafter, adaptive=False)
    found = run(pico.engine(dtype="float32", max_queue=512, speculative=speculative), again)
    assert {name: token_ids(outputs) for name, outputs in found.items()} == wanted
    for name, outputs in found.items():
        assert outputs[-1].finish_reason == whole[name.split("/")[0]][-1].finish_reason
        records = [record.token_id for output in outputs for record in output.logprobs or []]
        assert records == (wanted[name] if "thinks" not in name else [])


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_drafters_change_nothing(pico: Pico, drafter: str) -> None:
    requests = people(pico, repetition_penalty=1.1, logprobs=2)
    plain = run(pico.engine(), requests)
    engine = pico.engine(speculative=SpeculativeConfig(drafter=drafter, adaptive=False))
    drafted = run(engine, requests)
    for name, outputs in plain.items():
        assert token_ids(drafted[name]) == token_ids(outputs)
        assert drafted[name][-1].finish_reason == outputs[-1].finish_reason
        records = [record.token_id for output in drafted[name] for record in output.logprobs or []]
        assert records == token_ids(outputs)


def test_wrong_predictions_cannot_break_a_grammar(pico: Pico) -> None:
    wrong = pico.tokenizer.encode('{"name": "Bo", "age": "no number", "more": 1}} and so on')
    plain = pico.request("a", QUESTION, spec(PERSON))
    drafted = Request(
        request_id="a",
        prompt_token_ids=plain.prompt_token_ids,
        params=plain.params,
        grammar=plain.grammar,
        prediction_token_ids=wrong,
        draft=DraftOptions(),
    )
    expected = run(pico.engine(), [plain])["a"]
    assert token_ids(run(pico.engine(), [drafted])["a"]) == token_ids(expected)


def test_an_end_is_only_where_the_grammar_has_one(pico: Pico) -> None:
    digits = GrammarSpec(kind="regex", text="[0-9]{3}")
    for params in ({}, {"ignore_eos": True}, {"min_tokens": 100}, {"logit_bias": {2: 100.0}}):
        (last,) = run(pico.engine(), [pico.request("a", "What is 3 + 4?", digits, **params)])["a"][-1:]
        assert last.finish_reason == "stop" and last.stop_token_id is None
    found = run(pico.engine(), [pico.request("a", "What is 3 + 4?", digits)])["a"]
    assert pico.text(found).isdigit() and len(pico.text(found)) == 3
    cut = run(pico.engine(), [pico.request("a", "Hi", spec(PERSON), max_tokens=2)])["a"]
    assert cut[-1].finish_reason == "length" and len(token_ids(cut)) == 2


def test_a_stop_token_that_alone_may_come_comes_before_min_tokens(pico: Pico) -> None:
    (seven,) = pico.tokenizer.encode("7")
    params = {"stop_token_ids": (seven,), "min_tokens": 2}
    either, only = (GrammarSpec(kind="choice", text=text) for text in ('["7", "8"]', '["7"]'))
    others = pico.request("free", "What is 3 + 4?", None, max_tokens=8, **params)
    asked = [pico.request("either", "What is 3 + 4?", either, **params), others]
    found = run(pico.engine(), [*asked, pico.request("only", "What is 3 + 4?", only, **params)])
    last = found["only"][-1]
    assert (last.finish_reason, last.stop_token_id, last.error) == ("stop", seven, "")
    assert pico.text(found["either"]) == "8", "who has a choice keeps to min_tokens"
    assert seven not in token_ids(found["free"])[:2] and len(token_ids(found["free"])) >= 2


@pytest.mark.parametrize("thought", ["inside", "whole"])
def test_the_answer_behind_a_thought_obeys(pico: Pico, thought: str) -> None:
    grammar = spec(PERSON, thought=thought)
    close = pico.tokenizer.encode("</think>")[0]
    found = run(
        pico.engine(), [pico.request("a", QUESTION, grammar, logit_bias={close: 30.0}, max_tokens=99)]
    )
    text = pico.tokenizer.decode(token_ids(found["a"]), skip_special_tokens=False)
    thinking, _, answer = text.partition("</think>")
    assert thinking.lstrip("\n").startswith("<think>") == (thought == "whole")
    assert found["a"][-1].finish_reason == "stop"
    jsonschema.validate(json.loads(answer), PERSON)


def test_without_a_compiler_grammars_are_refused(pico: Pico) -> None:
    engine: Engine = pico.engine(compiler=None)
    with pytest.raises(RequestError, match="tokenizer") as refused:
        engine.add(pico.request("a", QUESTION, spec(PERSON)))
    assert refused.value.param == "response_format" and not engine.has_work
