"""Chat templates by name, for base models and for tokenizers without one.

Each writes what the family's own template writes, for system turns, several turns and thinking. Tools are in the
templates of Qwen, Llama 3.1 to 3.3 and GLM. The others are refused where a row has some, as any template is that leaves
out a part of a row.
"""

from __future__ import annotations

import re

from forebay.errors import InvalidOption
from forebay.runtime.formatting import near_names

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Chat template that many models share."""

_TOOLS = r"""
{{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function " }}
{{- "signatures within <tools></tools> XML tags:\n<tools>" }}
{%- for tool in tools %}{{- "\n" + tool | tojson }}{%- endfor %}
{{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within " }}
{{- "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": " }}
{{- "<args-json-object>}\n</tool_call><|im_end|>\n" }}"""

_TOOL_TURN = r"""
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"""

_SPLIT_THINKING = r"""
{%- set content = m.content or '' %}{%- set thinking = '' %}
{%- if m.reasoning_content is string %}{%- set thinking = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thinking = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}"""

_LAST_QUESTION = r"""
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"""

_QWEN2_5 = (
    r"""
{%- set identity = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' %}
{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else identity) }}
{%- if tools %}{{- '\n\n' }}"""
    + _TOOLS
    + r"""
{%- else %}{{- '<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant' }}{%- if m.content or not m.tool_calls %}{{- '\n' + m.content }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}"""
    + _TOOL_TURN
    + r"""
{%- elif not (m.role == 'system' and loop.first) %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
)

_QWEN3 = (
    r"""
{%- if tools or messages[0].role == 'system' %}{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + ('\n\n' if tools else '<|im_end|>\n') }}{%- endif %}
{%- endif %}
{%- if tools %}"""
    + _TOOLS
    + r"""{%- endif %}"""
    + _LAST_QUESTION
    + r"""
{%- for m in messages %}
{%- if m.role == 'assistant' %}"""
    + _SPLIT_THINKING
    + r"""
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or thinking) %}
{{- '<think>\n' + thinking.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- content }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{%- if content or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}"""
    + _TOOL_TURN
    + r"""
{%- elif not (m.role == 'system' and loop.first) %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
)

_QWEN3_6 = (
    r"""
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content | trim + '<|im_end|>\n' }}
{%- endif %}"""
    + _LAST_QUESTION
    + r"""
{%- for m in messages %}
{%- if m.role == 'assistant' %}"""
    + _SPLIT_THINKING
    + r"""
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last %}{{- '<think>\n' + thinking | trim + '\n</think>\n\n' }}{%- endif %}
{{- content | trim + '<|im_end|>\n' }}
{%- elif m.role == 'user' %}{{- '<|im_start|>user\n' + m.content | trim + '<|im_end|>\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
)

_LLAMA3 = r"""
{{- bos_token }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

_LLAMA3_1 = r"""
{%- set first = 1 if messages[0].role == 'system' else 0 %}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' + ('Environment: ipython\n' if tools else '') }}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' }}
{{- (date_string if date_string is defined else '26 Jul 2024') + '\n\n' }}
{{- (messages[0].content | trim if first else '') + '<|eot_id|>' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' }}
{%- elif m.tool_calls %}
{%- if m.tool_calls | length > 1 or m.content %}
{{- raise_exception('This model only supports single tool-calls at once, without a text!') }}{%- endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + m.tool_calls[0].function.name + '", ' }}
{{- '"parameters": ' + m.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' }}
{%- elif not (m.role == 'system' and loop.first) %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
{%- if tools and loop.index0 == first %}
{{- 'Given the following functions, please respond with a JSON for a function call with its proper arguments that ' }}
{{- 'best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of ' }}
{{- 'argument name and its value}.Do not use variables.\n\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) + '\n\n' }}{%- endfor %}
{%- endif %}
{{- m.content | trim + '<|eot_id|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

_LLAMA4 = r"""
{{- bos_token }}
{%- for m in messages %}
{{- '<|header_start|>' + m.role + '<|header_end|>\n\n' + m.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\n\n' }}{%- endif %}"""

_GEMMA = r"""
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""

_GEMMA3 = r"""
{{- bos_token }}
{%- set first, turns = '', messages %}
{%- if messages[0].role == 'system' %}{%- set first, turns = messages[0].content + '\n\n', messages[1:] %}{%- endif %}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}
{{- m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""

_GEMMA4 = (
    r"""
{{- bos_token }}"""
    + _LAST_QUESTION
    + r"""
{%- for m in messages %}
{{- '<|turn>' + ('model' if m.role == 'assistant' else 'system' if m.role == 'developer' else m.role) + '\n' }}
{%- if m.role == 'assistant' and m.reasoning and loop.index0 > ns.last %}
{{- '<|channel>thought\n' + m.reasoning + '\n<channel|>' }}{%- endif %}
{{- m.content | trim + '<turn|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn>model\n' }}{%- endif %}"""
)

_PHI3 = r"""
{%- for m in messages %}{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- else %}{{- eos_token }}{%- endif %}"""

_PHI4 = r"""
{%- for m in messages %}{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{%- endif %}"""

_PHI4_MINI = r"""
{%- for m in messages %}{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- else %}{{- eos_token }}{%- endif %}"""

_MISTRAL = r"""
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' %}{{- m.content + eos_token }}
{%- endif %}{%- endfor %}"""

_MISTRAL_V1 = r"""
{{- bos_token }}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{%- if m.role == 'user' %}{{- ' [INST] ' + m.content + ' [/INST]' }}
{%- else %}{{- ' ' + m.content + eos_token }}
{%- endif %}{%- endfor %}"""

_BAR = "\uff5c"
"""Bar of DeepSeek's tokens, another one than |."""
_DEEPSEEK = (
    (
        r"""
{{- bos_token }}
{%- for m in messages %}{%- if m.role == 'system' %}{{- m.content }}{%- endif %}{%- endfor %}"""
        + _LAST_QUESTION
        + r"""
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<!User!>' + m.content }}
{%- elif m.role == 'assistant' %}"""
        + _SPLIT_THINKING
        + r"""
{{- '<!Assistant!>' }}
{%- if thinking and loop.index0 > ns.last %}{{- '<think>\n' + thinking + '\n</think>\n\n' + content }}
{%- else %}{{- m.content.split('</think>')[-1] }}{%- endif %}
{{- '<!end▁of▁sentence!>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<!Assistant!>' }}"""
    )
    .replace("<!", f"<{_BAR}")
    .replace("!>", f"{_BAR}>")
)
_DEEPSEEK_V3 = _DEEPSEEK + "{%- endif %}"
_DEEPSEEK_R1 = _DEEPSEEK + r"""{{- '<think>\n' }}{%- endif %}"""

_GPT_OSS = r"""
{{- '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n' }}
{{- 'Knowledge cutoff: 2024-06\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\n\nReasoning: ' }}
{{- (reasoning_effort if reasoning_effort is defined else 'medium') + '\n\n# Valid channels: analysis, commentary, ' }}
{{- 'final. Channel must be included for every message.<|end|>' }}
{%- for m in messages %}
{%- if m.role in ('system', 'developer') %}
{{- '<|start|>developer<|message|># Instructions\n\n' + m.content + '\n\n<|end|>' }}
{%- elif m.role == 'user' %}{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'assistant' %}
{%- if m.thinking and loop.last %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""

_GLM4_5 = (
    r"""
{{- '[gMASK]<sop>' }}
{%- if tools %}
{{- '<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided ' }}
{{- 'with function signatures within <tools></tools> XML tags:\n<tools>\n' }}
{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}
{{- '</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n' }}
{{- '<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n' }}
{{- '<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>' }}
{%- endif %}"""
    + _LAST_QUESTION
    + r"""
{%- for m in messages %}
{%- if m.role == 'assistant' %}"""
    + _SPLIT_THINKING
    + r"""
{{- '<|assistant|>\n<think>' + (thinking.strip() if loop.index0 > ns.last else '') + '</think>' }}
{%- if content.strip() %}{{- '\n' + content.strip() }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>' + call.function.name + '\n' }}
{%- for name, value in call.function.arguments.items() %}
{{- '<arg_key>' + name + '</arg_key>\n<arg_value>' }}
{{- (value if value is string else value | tojson) + '</arg_value>\n' }}
{%- endfor %}{{- '</tool_call>' }}{%- endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- else %}{{- '<|' + m.role + '|>\n' + m.content }}
{%- if m.role == 'user' and enable_thinking is defined and not enable_thinking and not m.content.endswith('/nothink') %}
{{- '/nothink' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '\n<think></think>' }}{%- endif %}
{%- endif %}"""
)

TEMPLATES = {
    "chatml": CHATML,
    "qwen2.5": _QWEN2_5,
    "qwen3": _QWEN3,
    "qwen3.6": _QWEN3_6,
    "llama3": _LLAMA3,
    "llama3.1": _LLAMA3_1,
    "llama3.2": _LLAMA3_1,
    "llama3.3": _LLAMA3_1,
    "llama4": _LLAMA4,
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA3,
    "gemma4": _GEMMA4,
    "phi3": _PHI3,
    "phi4": _PHI4,
    "phi4-mini": _PHI4_MINI,
    "mistral": _MISTRAL,
    "mistral-v1": _MISTRAL_V1,
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-r1": _DEEPSEEK_R1,
    "gpt-oss": _GPT_OSS,
    "glm4.5": _GLM4_5,
}
"""Chat templates by name."""
_MARKS = re.compile(
    rf"<[|{_BAR}][^\s'<>]+[|{_BAR}]?>|<(?:start|end)_of_turn>|\[/?SYSTEM_PROMPT\]|\[gMASK\]|<sop>|<turn\|>"
)


def template_named(name: str) -> str:
    """Chat template of a name, however it is spelled: "Llama-3.1".

    Raises `InvalidOption` for an unknown name.
    """
    known = {_plain(each): each for each in TEMPLATES}
    if (found := known.get(_plain(name))) is not None:
        return TEMPLATES[found]
    near = near_names(_plain(name), known, most=1, cutoff=0.75)
    meant = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise InvalidOption(
        f"template={name!r} is neither a known template ({', '.join(map(repr, TEMPLATES))}) nor a Jinja text with "
        f"{{{{ ... }}}}.{meant} Give one of these, or leave it out for the tokenizer's own.",
        template=name,
    )


def marks_of(template: str) -> set[str]:
    """Special tokens that a named template writes."""
    return {*_MARKS.findall(template)}


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name.lower())
