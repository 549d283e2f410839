"""A chat template is rendered as transformers renders it, in a sandbox, or is left to transformers."""

from __future__ import annotations

import json

import jinja2
import pytest

from epicrag.serving.prompt import ChatFormat
from epicrag.serving.template import read_template
from epicrag.serving.tokenizer import UnitTokenizer

CHAT = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m['content'] | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CONTROLLED = """\
{{- eos_token }}
  {% if messages[0]['role'] == 'system' %}
    S: {{ messages[0].content }}
  {% endif %}
{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m | tojson }}{% endfor %}"""
DATED = "{% if tools is not none %}{{ tools }}{% endif %}{{ messages[-1].content }} {{ strftime_now('%Y') }}"
TEMPLATES = [CHAT, CONTROLLED, DATED]
MESSAGES = [{"role": "system", "content": " Be kind. <b>"}, {"role": "user", "content": "é?"}]


def folder_with(template, tokenizer_maker, tmp_path, **settings):
    tokenizer_maker(tmp_path, template=template, bos=True)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return tmp_path


@pytest.mark.parametrize("template", TEMPLATES)
def test_text_is_that_of_transformers(template, tokenizer_maker, tmp_path):
    from transformers import AutoTokenizer

    folder = folder_with(template, tokenizer_maker, tmp_path)
    ours, theirs = read_template(folder), AutoTokenizer.from_pretrained(folder)
    assert ours is not None
    assert ours.bos_token == theirs.bos_token
    for messages in (MESSAGES, MESSAGES[1:]):
        for prompted in (True, False):
            settings = {"tokenize": False, "add_generation_prompt": prompted}
            want = theirs.apply_chat_template(messages, **settings)
            assert ours.apply_chat_template(messages, **settings) == want


def test_a_refusal_of_the_template_is_raised(tokenizer_maker, tmp_path):
    template = "{{ raise_exception('no system role') }}"
    ours = read_template(folder_with(template, tokenizer_maker, tmp_path))
    assert ours is not None
    with pytest.raises(jinja2.TemplateError, match="no system role"):
        ours.apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{% set ns = namespace(a=1) %}{{ ns.a }}",
        "{% generation %}{% endgeneration %}",
        "{{ pad_me_token }}",
        "{% include 'other' %}",
    ],
)
def test_a_template_that_asks_for_more_is_left_to_transformers(template, tokenizer_maker, tmp_path):
    assert read_template(folder_with(template, tokenizer_maker, tmp_path)) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"add_bos_token": True},
        {"eos_token": {"content": "x"}},
        {"auto_map": {"AutoTokenizer": "own.Code"}},
    ],
)
def test_settings_that_change_the_tokens_are_left_to_transformers(
    settings, tokenizer_maker, tmp_path
):
    assert read_template(folder_with(CONTROLLED, tokenizer_maker, tmp_path, **settings)) is None


def test_the_sandbox_holds(tokenizer_maker, tmp_path):
    template = "{{ messages.append(1) }}{{ ('%s' | attr('for' ~ 'mat')) }}{{ range(99999999) }}"
    ours = read_template(folder_with(template, tokenizer_maker, tmp_path))
    assert ours is not None
    with pytest.raises(jinja2.exceptions.SecurityError):
        ours.apply_chat_template(MESSAGES)


@pytest.mark.parametrize("bos", [True, False])
def test_both_ways_give_the_same_chat_format(bos, tokenizer_maker, tmp_path, monkeypatch):
    tokenizer_maker(tmp_path, bos=bos)
    tokenizer = UnitTokenizer.load(tmp_path)
    quick = ChatFormat.load(tmp_path, tokenizer)
    monkeypatch.setattr("epicrag.serving.prompt.read_template", lambda folder: None)
    slow = ChatFormat.load(tmp_path, tokenizer)
    assert quick.bos == slow.bos == ("<s>" if bos else "")
    for roles in (["system", "user"], ["user", "assistant", "user"]):
        assert quick.frame(roles) == slow.frame(roles)
