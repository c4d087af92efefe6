"""Chat formats as the families have them, each with what its models write: turns, calls, thinking, and end tokens.

The templates are short forms of our own, with what matters of the published ones: how turns open and close, what they
drop of earlier turns, how they write tools, calls and their results, and what they refuse.
"""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

CHATML = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}
{%- set said = m.content %}
{%- if THINKS %}{% set said = said.split('</think>')[-1].lstrip() %}
{%- set why = m.reasoning_content or (m.content.split('</think>')[0].split('<think>')[-1].strip() if '</think>' in m.content else '') %}
{%- if loop.index0 > ns.last and (loop.last or why) %}{% set said = '<think>\\n' + why + '\\n</think>\\n\\n' + said %}{% endif %}
{%- endif %}
<|im_start|>assistant
{{ said }}{% for call in m.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""  # noqa: E501

GLM_45 = """[gMASK]<sop>
{%- if tools %}<|system|>
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|user|>
{{ m.content }}
{%- elif m.role == 'assistant' %}<|assistant|>
{%- if '</think>' in m.content and loop.index0 > ns.last %}{{ '\\n' + m.content }}
{%- else %}{{ '\\n<think></think>\\n' + m.content.split('</think>')[-1].strip() }}{% endif %}
{%- for call in m.tool_calls %}
<tool_call>{{ call.function.name + '\\n' }}{% for k, v in call.function.arguments.items() -%}
{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}{{ v }}{{ '</arg_value>\\n' }}{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif -%}
{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- elif m.role == 'system' %}<|system|>
{{ m.content }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

GLM_47 = """[gMASK]<sop>
{%- if tools %}<|system|>
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role in ['user', 'system'] %}<|{{ m.role }}|>{{ m.content }}
{%- elif m.role == 'assistant' %}<|assistant|>
{%- set why = m.reasoning_content or (m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '') %}
{{- '<think>' + why.strip() + '</think>' if why and loop.index0 > ns.last else '</think>' }}
{{- m.content.split('</think>')[-1].strip() }}
{%- for call in m.tool_calls %}<tool_call>{{ call.function.name }}{% for k, v in call.function.arguments.items() -%}
<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif -%}
<tool_response>{{ m.content }}</tool_response>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|><think>{% endif %}"""  # noqa: E501

GLM_4 = """[gMASK]<sop>
{%- if tools %}<|system|>
{% for tool in tools %}## {{ tool.function.name }}
{{ tool.function | tojson }}
{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m.role in ['system', 'user', 'observation'] %}<|{{ m.role }}|>
{{ m.content }}
{%- elif m.role == 'assistant' %}<|assistant|>{{ m.metadata or '' }}
{{ m.content }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

DEEPSEEK = """<|bos|>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}
{%- for tool in tools or [] %}
{{ tool | tojson }}{% endfor %}
{%- set ns = namespace(results=false) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% if ns.results %}<|outputs_end|>{% set ns.results = false %}{% endif %}<|User|>{{ m.content }}
{%- elif m.role == 'assistant' %}{% if ns.results %}<|outputs_end|>{% set ns.results = false %}{% else %}<|Assistant|>{% endif %}
{{- m.content.split('</think>')[-1] }}
{%- if m.tool_calls %}<|calls_begin|>{% for call in m.tool_calls %}<|call_begin|>function<|sep|>{{ call.function.name }}
```json
{{ '' + call.function.arguments }}
```<|call_end|>{% endfor %}<|calls_end|>{% endif %}<|eos|>
{%- elif m.role == 'tool' %}{% if not ns.results %}<|outputs_begin|>{% set ns.results = true %}{% endif -%}
<|output_begin|>{{ m.content }}<|output_end|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{% if ns.results %}<|outputs_end|>{% else %}<|Assistant|><think>
{% endif %}{% endif %}"""  # noqa: E501

DEEPSEEK_32 = """<|bos|>
{%- for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}
{%- for tool in tools or [] %}
{{ tool.function | tojson }}{% endfor %}
{%- set ns = namespace(last=-1, calls=0, results=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|User|>{{ m.content }}<|Assistant|>
{%- elif m.role == 'assistant' %}{{ '<think>' if loop.index0 > ns.last else '</think>' }}
{%- set ns.calls = (m.tool_calls or []) | length %}{% set ns.results = 0 %}
{%- if loop.index0 > ns.last %}
{{- m.reasoning_content or (m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '') }}</think>{% endif %}
{{- m.content.split('</think>')[-1] }}
{%- if m.tool_calls %}{{ '\\n\\n<|DSML|function_calls>\\n' }}{% for call in m.tool_calls -%}
<|DSML|invoke name="{{ call.function.name }}">
{% for k, v in call.function.arguments.items() -%}
<|DSML|parameter name="{{ k }}" string="{{ 'true' if v is string else 'false' }}">{{ v if v is string else v | tojson }}</|DSML|parameter>
{{- '' if loop.last else '\\n' }}{% endfor %}{{ '\\n</|DSML|invoke>\\n' }}{% endfor %}</|DSML|function_calls>{% endif %}<|eos|>
{%- elif m.role == 'tool' %}{% set ns.results = ns.results + 1 %}
{%- if ns.results > ns.calls %}{{ raise_exception('a result without its call') }}{% endif %}
{{- '\\n\\n<function_results>' if ns.results == 1 else '' }}{{ '\\n' }}<result>{{ m.content }}</result>
{%- if ns.results == ns.calls %}{{ '\\n</function_results>\\n\\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<think>{% endif %}"""  # noqa: E501

LLAMA = """<|begin_of_text|>
{%- if tools %}<|start_header_id|>system<|end_header_id|>

{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|eot_id|>{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}<|start_header_id|>assistant<|end_header_id|>

{% for call in m.tool_calls %}{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{%- endfor %}<|eot_id|>
{%- else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

GEMMA = """<bos>
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif -%}
<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""


class Format(NamedTuple):
    """Attributes:
    template, special: of the tokenizer.
    ends: tokens that end a response; GLM's open the next turn.
    call: what the model writes to call a tool, without its end token.
    has_tools: whether the template has a place for their results.
    """

    template: str
    special: tuple[str, ...]
    ends: tuple[str, ...]
    call: str
    has_tools: bool = True


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":false}}\n</tool_call>'
_GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM_ENDS = ("<|user|>", "<|observation|>", "<|endoftext|>")
FORMATS = {
    "qwen3": Format(CHATML.replace("THINKS", "true"), _CHATML, ("<|im_end|>", "<|endoftext|>"), _CALL),
    "qwen2.5, mimo": Format(CHATML.replace("THINKS", "false"), _CHATML, ("<|im_end|>", "<|endoftext|>"), _CALL),
    "glm-4.5": Format(
        GLM_45, _GLM, _GLM_ENDS, "\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
    ),
    "glm-4.7, glm-5": Format(
        GLM_47, _GLM, _GLM_ENDS, "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    ),
    "glm-4": Format(GLM_4, _GLM, _GLM_ENDS, 'add\n{"a": 1}'),
    "deepseek-v3": Format(
        DEEPSEEK,
        ("<|eos|>", "<|bos|>", "<|User|>", "<|Assistant|>", "<|calls_begin|>", "<|call_begin|>", "<|sep|>",
         "<|call_end|>", "<|calls_end|>", "<|outputs_begin|>", "<|output_begin|>", "<|output_end|>", "<|outputs_end|>"),
        ("<|eos|>",),
        '<|calls_begin|><|call_begin|>function<|sep|>add\n```json\n{"a":1}\n```<|call_end|><|calls_end|>',
    ),
    "deepseek-v3.2": Format(
        DEEPSEEK_32, ("<|eos|>", "<|bos|>", "<|User|>", "<|Assistant|>"), ("<|eos|>",), "\n\n<|DSML|function_calls>\n"
        '<|DSML|invoke name="add">\n<|DSML|parameter name="a" string="false">1</|DSML|parameter>\n</|DSML|invoke>\n'
        "</|DSML|function_calls>",
    ),
    "llama-3": Format(
        LLAMA, ("<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        ("<|eot_id|>", "<|end_of_text|>"), '{"name": "add", "parameters": {"a": 1}}',
    ),
    "gemma-3": Format(GEMMA, ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), ("<end_of_turn>",), "", False),
}  # fmt: skip


def tokenizer_of(form: Format, folder: str) -> PreTrainedTokenizerFast:
    """Of one token a character, beside the special ones; the first of those is its end token."""
    words = [*form.special, *"\t\n", *map(chr, range(32, 127)), "<think>", "</think>", "<tool_call>", "</tool_call>"]
    inner = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in form.special])
    inner.add_tokens([AddedToken(word, special=False, normalized=False) for word in words[-4:]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=form.special[0])
    tokenizer.chat_template, tokenizer.name_or_path = form.template, folder
    return tokenizer
