"""Answers that follow a grammar: they parse and validate, whatever the schema; hostile ones are refused early."""

import json
import time
from itertools import zip_longest
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.errors import UsageError
from epicrag.serving.constrain import MAX_CHARS, Constraint, Grammar, Vocabulary
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampler, Sampling, TextStream
from epicrag.serving.tokenizer import UnitTokenizer

ENDS = (2,)
WIDTH = 400
"""Of the tiny models' logits; their tokenizer has fewer ids."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SHORT = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
TEXTS = tuple(f"text number {n} says that the cat sat on mat {n * 7}" for n in range(3))
ASKED = Prompt("where is the cat", tuple(map(Piece, TEXTS)))

names = st.text('abcdefgh é"\\', min_size=1, max_size=5)
leaves = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-1000, 1000),
        st.integers(0, 1000),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 8)),
    st.sampled_from(
        [
            {"type": "string", "pattern": "^[a-c]{2,4}$"},
            {"type": "string", "format": "date"},
            {"type": ["boolean", "null"]},
            {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
        ]
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(names, st.integers(-9, 9), st.booleans(), st.none()), min_size=1),
    ),
    st.builds(
        lambda value: {"const": value}, st.one_of(names, st.lists(st.integers(), max_size=2))
    ),
)


def _object(parts: dict[str, Any], n_wanted: int) -> dict[str, Any]:
    required = list(parts)[:n_wanted]
    return {
        "type": "object",
        "properties": parts,
        "required": required,
        "additionalProperties": False,
    }


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(names, inner, max_size=3), st.integers(0, 3)),
        st.builds(
            lambda item, least, more: {
                "type": "array",
                "items": item,
                "minItems": least,
                "maxItems": least + more,
            },
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a: {"$defs": {"a": a}, "type": "array", "items": a, "maxItems": 2}, inner),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def tokenizer(checkpoint) -> UnitTokenizer:
    return UnitTokenizer.load(checkpoint("llama"))


@pytest.fixture(scope="module")
def vocabulary(tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, ENDS)


def babble(
    constraint: Constraint, tokenizer: UnitTokenizer, seed: int, most: int = 400
) -> tuple[str, bool]:
    """What a model without any sense would write, and whether it came to an end."""
    generator = torch.Generator().manual_seed(seed)
    sampler = Sampler(Sampling(temperature=1.0, seed=seed, grammar=None), constraint)
    stream = TextStream(tokenizer, ())
    text = ""
    for _ in range(most):
        token = sampler(torch.randn(WIDTH, generator=generator) * 3)
        if token in ENDS:
            return text + stream.end(), True
        text += stream.push(token)
        if sampler.is_complete:
            return text + stream.end(), True
    return text, False


def allowed(constraint: Constraint) -> set[int]:
    return set(torch.isfinite(constraint.mask(torch.zeros(WIDTH))).nonzero().flatten().tolist())


def run(engine, asked=ASKED, policy="legolink(4)", **choices):
    sampling = Sampling(**{"max_tokens": 200, "temperature": 1.0, "seed": 3, **choices})
    generation = engine.generate(asked, policy=parse_policy(policy), sampling=sampling)
    return "".join(generation), generation


# --- what comes out ------------------------------------------------------------------------------


@settings(max_examples=60)
@given(schema=schemas, seed=st.integers(0, 1 << 30))
def test_whatever_the_schema_the_output_parses_and_validates(vocabulary, tokenizer, schema, seed):
    constraint = vocabulary.follow(Grammar.json_schema(schema))
    text, is_whole = babble(constraint, tokenizer, seed)
    assert is_whole
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


@settings(max_examples=4)
@given(schema=schemas, seed=st.integers(0, 1 << 30))
def test_a_tiny_model_follows_any_schema(tiny_engine, schema, seed):
    grammar = Grammar.json_schema(schema)
    text, generation = run(tiny_engine("llama"), seed=seed, max_tokens=300, grammar=grammar)
    assert generation.finish_reason == "stop"
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_json_object_is_any_object(vocabulary, tokenizer):
    whole = [
        babble(vocabulary.follow(Grammar.json_object()), tokenizer, seed) for seed in range(12)
    ]
    for text in [text for text, is_whole in whole if is_whole]:
        assert isinstance(json.loads(text), dict)
    assert any(is_whole for _, is_whole in whole)


def test_regex_choice_and_lark_are_followed(vocabulary, tokenizer):
    def said(grammar: Grammar) -> str:
        return babble(vocabulary.follow(grammar), tokenizer, 5)[0]

    assert said(Grammar.choice(['yes "quoted"', "no\n", "été"])) in ('yes "quoted"', "no\n", "été")
    number, mark, word = said(Grammar.regex("[0-9]{3}-[ab]")).partition("-")
    assert number.isdigit() and len(number) == 3 and mark and word in "ab"
    assert set(said(Grammar.lark('start: "x" | "x" start'))) == {"x"}


# --- which tokens are allowed --------------------------------------------------------------------


def test_no_control_token_is_ever_allowed_and_an_end_only_where_the_grammar_accepts(
    vocabulary, tokenizer
):
    anything = vocabulary.follow(Grammar.regex("a[^z]*"))
    assert allowed(anything).isdisjoint(tokenizer.special_ids)
    anything.take(*tokenizer.ids("a"))
    assert allowed(anything) & tokenizer.special_ids == set(ENDS)


def test_rows_beyond_the_vocabulary_are_barred_also_for_narrower_logits(vocabulary, tokenizer):
    constraint = vocabulary.follow(Grammar.regex("[^z]+"))
    assert max(allowed(constraint)) < tokenizer.size < WIDTH
    assert constraint.mask(torch.zeros(50)).shape == (50,)


def test_a_control_token_in_a_grammar_is_never_written(vocabulary):
    grammar = Grammar.lark('start: "a" <|im_start|>')
    constraint = vocabulary.follow(grammar)
    constraint.take(next(iter(allowed(constraint))))
    with pytest.raises(UsageError, match="vocabulary"):
        constraint.mask(torch.zeros(WIDTH))


def test_the_mask_leaves_the_logits_as_they_are_and_scores_of_what_is_left_too(vocabulary):
    constraint = vocabulary.follow(Grammar.choice(["yes", "no"]))
    logits = torch.randn(WIDTH)
    before = logits.clone()
    masked = constraint.mask(logits)
    assert torch.equal(logits, before)
    left = torch.isfinite(masked)
    assert torch.equal(masked[left], before[left])


# --- in the engine -------------------------------------------------------------------------------


def test_under_every_policy_and_for_refused_models(tiny_engine):
    grammar = Grammar.json_schema(SHORT)
    for policy in ("full", "prefix", "none", "legolink(4)", "damp", "legolink(4)+correct"):
        text, generation = run(tiny_engine("llama"), policy=policy, grammar=grammar)
        jsonschema.validate(json.loads(text), SHORT)
        assert (generation.finish_reason, generation.is_constrained) == ("stop", True)
    text, _ = run(tiny_engine("gpt2"), grammar=grammar)
    jsonschema.validate(json.loads(text), SHORT)


def test_greedy_and_cut_sampling_follow_too(tiny_engine):
    grammar = Grammar.json_schema(SHORT)
    for choices in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.1}):
        text, _ = run(tiny_engine("llama"), grammar=grammar, **choices)
        jsonschema.validate(json.loads(text), SHORT)


def test_two_answers_side_by_side_are_what_each_is_alone(tiny_engine):
    engine = tiny_engine("llama")
    constrained = Sampling(max_tokens=12, grammar=Grammar.json_schema(PERSON))
    free = Sampling(max_tokens=12)
    policy = parse_policy("legolink(4)")

    def start(sampling):
        return engine.submit(ASKED, policy=policy, sampling=sampling)

    alone = [list(start(sampling)) for sampling in (constrained, free)]
    first, second = start(constrained), start(free)
    together = [[], []]
    for pair in zip_longest(first, second):
        for said, delta in zip(together, pair, strict=True):
            said += [] if delta is None else [delta]
    assert together == alone


def test_max_tokens_within_the_grammar_says_length(tiny_engine):
    text, generation = run(tiny_engine("llama"), max_tokens=5, grammar=Grammar.json_schema(PERSON))
    assert generation.finish_reason == "length"
    assert text.startswith("{") and not text.endswith("}")


def test_an_answer_that_is_whole_with_the_last_token_allowed_says_stop(tiny_engine):
    grammar = Grammar.regex("a")
    text, generation = run(tiny_engine("llama"), max_tokens=1, grammar=grammar)
    assert (text, generation.finish_reason) == ("a", "stop")


def test_stop_strings_do_not_cut_it(tiny_engine):
    grammar = Grammar.choice(['{"a": "\n\nQuestion: END"}'])
    text, generation = run(tiny_engine("llama"), stop=("END", "{"), grammar=grammar)
    assert text == '{"a": "\n\nQuestion: END"}'
    assert generation.finish_reason == "stop"


def test_what_goes_round_in_circles_is_noticed_and_what_only_repeats_is_not(vocabulary, tokenizer):
    endless = vocabulary.follow(Grammar.regex("[0-9]+"))
    items = vocabulary.follow(Grammar.json_schema({"type": "array", "items": {"type": "boolean"}}))
    for said, constraint, ids in (
        ("1", endless, tokenizer.ids("1" * 300)),
        ("true,", items, tokenizer.ids("[" + "true," * 80)),
    ):
        noticed = []
        for token in ids:
            constraint.take(token)
            noticed.append(constraint.is_endless)
        assert noticed[-1], said
        assert not any(noticed[:150])


def test_an_answer_that_goes_round_in_circles_ends_with_length(tiny_engine, monkeypatch):
    monkeypatch.setattr("epicrag.serving.constrain.LOOP_TOKENS", 8)
    text, generation = run(tiny_engine("llama"), grammar=Grammar.regex("0{40}"))
    assert (text, generation.finish_reason) == ("0" * 8, "length")


def test_an_unknown_format_is_no_constraint_as_json_schema_has_it(vocabulary, tokenizer):
    schema = {"type": "string", "format": "file-path", "maxLength": 3}
    text, _ = babble(vocabulary.follow(Grammar.json_schema(schema)), tokenizer, 4)
    assert isinstance(json.loads(text), str)
    named = {"properties": {"format": {"type": "boolean"}}, "required": ["format"]}
    kept = {"type": "object", **named, "additionalProperties": False}
    text, _ = babble(vocabulary.follow(Grammar.json_schema(kept)), tokenizer, 4)
    assert isinstance(json.loads(text)["format"], bool)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, r'#/properties/a: .*"not"'),
        ({"properties": {"b": {"items": {"uniqueItems": True}}}}, r"#/properties/b/items: "),
        ({"anyOf": [{}, {"type": "foo"}]}, r"#/anyOf/1: .*foo"),
        ({"properties": {"a/b": {"pattern": "(?=a)"}}}, r"#/properties/a~1b: .*look-around"),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "say anyOf"),
        ({"$ref": "#/$defs/gone"}, "gone"),
        ({"$ref": "https://example.org/schema"}, "does not fetch"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "greater"),
        ({"multipleOf": 999_983}, "multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "multipleOf"),
        ({"multipleOf": 0}, "multipleOf at #"),
        ({"pattern": "a" * 1001}, "pattern at #"),
        ({"x-guidance": {"lenient": True}, "not": {}}, '"not"'),
        ({"enum": ["x" * MAX_CHARS]}, "characters"),
        ({"enum": [[n] for n in range(1001)]}, "objects and arrays"),
        ("{", "not JSON"),
        ("[1]", "object"),
        ("[" * 3000, "not JSON"),
        ({"minimum": float("nan")}, "not JSON"),
        ({"enum": {1, 2}}, "not JSON"),
        (False, "."),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(schema, said):
    with pytest.raises(UsageError, match=said):
        Grammar.json_schema(schema)


def test_a_schema_that_nothing_satisfies_is_refused_before_the_request_waits(vocabulary):
    with pytest.raises(UsageError, match="satisf"):
        vocabulary.follow(Grammar.json_schema({"$ref": "#"}))


@pytest.mark.parametrize("pattern", ["", "a{2", "(?<=a)b", "a" * 1001, "(" * 900])
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(UsageError):
        Grammar.regex(pattern)


@pytest.mark.parametrize("choices", [[], [""], ["a", 3], [str(n) for n in range(1001)]])
def test_bad_choices_are_refused(choices):
    with pytest.raises(UsageError):
        Grammar.choice(choices)


def test_a_bad_lark_grammar_is_refused():
    with pytest.raises(UsageError, match="grammar"):
        Grammar.lark("start: nothing")


def _chain(n: int, kind: str) -> dict[str, Any]:
    """References that lead on and on: they overflow a stack that is not guarded."""
    links: dict[str, Any] = {
        "ref": lambda to: to,
        "items": lambda to: {"type": "array", "items": to},
        "allOf": lambda to: {"allOf": [to, to]},
        "anyOf": lambda to: {"anyOf": [to, {"type": "array", "items": to}]},
    }
    parts = {f"a{i}": links[kind]({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)}
    return {"$defs": {**parts, f"a{n}": {"type": "string"}}, "$ref": "#/$defs/a0"}


HOSTILE: dict[str, dict[str, Any]] = {
    "long chain": _chain(20_000, "items"),
    "chain": _chain(400, "items"),
    "plain chain": _chain(900, "ref"),
    "doubling": _chain(20, "allOf"),
    "choices": _chain(60, "anyOf"),
    "deep": json.loads('{"items":' * 200 + "{}" + "}" * 200),
    "wide": {"properties": {f"k{n}": {"type": "string"} for n in range(900)}},
    "many": {"anyOf": [{"properties": {f"k{n}": {"type": "string"}}} for n in range(300)]},
    "product": {
        "allOf": [{"anyOf": [{"required": [f"k{i}{j}"]} for j in range(4)]} for i in range(20)]
    },
    "patterns": {"allOf": [{"pattern": f"^.*{c}.{{{30 + n}}}$"} for n, c in enumerate("abcdefg")]},
    "repeats": {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
    "states": {"type": "string", "pattern": "^(.*a.{200}b)$"},
    "long": {"type": "string", "minLength": 10**18, "maxLength": 10**19},
    "items": {"items": {"items": {"minItems": 10**9}, "minItems": 10**9}, "minItems": 10**9},
    "multiples": {"items": [{"multipleOf": 10, "minimum": n} for n in range(900)]},
    "range": {"type": "number", "minimum": 1e-300, "maximum": 1e300},
    "names": {"patternProperties": {f"^.*{chr(97 + n)}.{{9}}$": {} for n in range(26)}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_costs_a_bounded_time(vocabulary, tokenizer, name):
    """Refused or followed, either is fine; holding up a server is not. (Shared machines are slow: 5 seconds.)"""
    began = time.process_time()
    try:
        constraint = vocabulary.follow(Grammar.json_schema(HOSTILE[name]))
        babble(constraint, tokenizer, 1, most=40)
    except UsageError:
        pass
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar.json_schema({"const": "\ud800"}),
        lambda: Grammar.regex("a\udfff"),
        lambda: Grammar.choice(["\ud800"]),
        lambda: Grammar.lark('start: "\ud800"'),
    ],
)
def test_half_a_character_is_refused(make):
    with pytest.raises(UsageError, match="is no character"):
        make()
