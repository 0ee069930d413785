"""Chat templates of many families, each with a small tokenizer that holds the family's special tokens.

TRL's templates are those that models ship; the others are minimal ones in a family's published markup.
`python -m tests.kit.chat_families` writes docs/chat_templates.md, which a test holds against what comes out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agent_r1_gym.errors import ConfigurationError
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.chat_template import trl_templates
from trainers.rollouts.tool_template import ToolTemplate

DOCUMENT = Path(__file__).parents[2] / "docs" / "chat_templates.md"
_ALTERNATE = (
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)
_MARKUP = re.compile(r"<[|｜][^<>\s{}'\"]+[|｜]?>|<\w+\|>|<(?:start|end)_of_\w+>|\[[gs]?MASK\]|<sop>|<eop>")


@dataclass(frozen=True)
class Family:
    """A template and what its tokenizer holds."""

    template: str
    eos: str = "</s>"
    bos: str | None = "<s>"
    special: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def tokenizer(self, folder: Path) -> Any:
        """Returns the tokenizer as it comes back from `folder`."""
        core = Tokenizer.from_str(_core())
        names = dict.fromkeys([*_MARKUP.findall(self.template), *self.special])
        names |= dict.fromkeys(name for name in (self.bos, self.eos) if name)
        core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        own: Any = PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token=self.bos, eos_token=self.eos, pad_token=self.eos
        )
        own.chat_template = self.template
        own.save_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder)


@cache
def _core() -> str:
    """Returns a small byte-level BPE tokenizer, as JSON."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(["the answer is in the tool response", "user assistant system think"] * 8, trainer)
    return core.to_str()


def _chatml(**changes: str) -> str:
    parts = {"head": "<|im_start|>", "sep": "\\n", "tail": "<|im_end|>\\n", "model": "message.role"} | changes
    return (
        f"{{% for message in messages %}}{{{{ '{parts['head']}' + {parts['model']} + '{parts['sep']}' + "
        f"message.content + '{parts['tail']}' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{parts['head']}assistant{parts['sep']}' }}}}{{% endif %}}"
    )


_LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% set rules = messages[0].content %}"
    "{% else %}{% set rest = messages %}{% set rules = false %}{% endif %}{% for message in rest %}" + _ALTERNATE + ""
    "{% set content = '<<SYS>>\\n' + rules + '\\n<</SYS>>\\n\\n' + message.content if loop.first and rules "
    "else message.content %}"
    "{% if message.role == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for message in messages %}" + _ALTERNATE + "{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}{% elif message.role == 'assistant' %}"
    "{{ message.content + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles!') }}"
    "{% endif %}{% endfor %}"
)
_NEMO = (
    "{% if messages[0].role == 'system' %}{% set rules = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for message in rest %}" + _ALTERNATE + ""
    "{% if message.role == 'user' %}{% if loop.last and rules is defined %}"
    "{{ '[INST]' + rules + '\\n\\n' + message.content + '[/INST]' }}{% else %}"
    "{{ '[INST]' + message.content + '[/INST]' }}"
    "{% endif %}{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"
)
_TEKKEN = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}{% elif message.role == 'user' %}"
    "{{ '[INST]' + message.content + '[/INST]' }}{% elif message.role == 'assistant' %}"
    "{{ message.content + eos_token }}{% else %}{{ raise_exception('Only system, user and assistant roles!') }}"
    "{% endif %}{% endfor %}"
)
_SMOLLM3 = (
    "{% set mode = '/no_think' if enable_thinking is defined and not enable_thinking else '/think' %}"
    "{{ '<|im_start|>system\\n## Metadata\\n\\nReasoning Mode: ' + mode + '\\n\\n## Custom Instructions\\n\\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content.rstrip() }}{% endif %}{{ '<|im_end|>\\n' }}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}"
    "{% elif message.role == 'tool' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}"
    "{% elif message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}"
    "{% if mode == '/no_think' %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}"
    "{{ message.content.lstrip('\\n') + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if mode == '/no_think' %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}{% endif %}"
)
_GLM4 = (
    "[gMASK]<sop>{% for message in messages %}"
    "{{ '<|observation|>' if message.role == 'tool' else '<|' + message.role + '|>' }}"
    "{{ '\\n' + message.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_LING = (
    "{% for message in messages %}{% set name = {'user': 'HUMAN', 'system': 'SYSTEM', 'assistant': 'ASSISTANT', "
    "'tool': 'OBSERVATION'}[message.role] %}{{ '<role>' + name + '</role>' + message.content + '<|role_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{% endif %}"
)
_MINIMAX2 = (
    "]~!b[{% for message in messages %}{{ ']~b]' + ('ai' if message.role == 'assistant' else message.role) + '\\n' + "
    "message.content + '[e~[\\n' }}{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\\n' }}{% endif %}"
)
_MISTRAL_TOOLS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set rules = messages[0].content + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set rules = '' %}{% set rest = messages %}{% endif %}"
    "{% set ns = namespace(index=0, last=0) %}{% for message in rest %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% if message.role == 'user' or (message.role == 'assistant' and not "
    "message.tool_calls) %}{% if (message.role == 'user') != (ns.index % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% for message in rest %}{% if message.role == 'user' %}{% if tools and loop.index0 == ns.last %}"
    "{{ '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST] ' + (rules if loop.last else '') + message.content + '[/INST]' }}"
    "{% elif message.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('Tool call IDs have 9 characters!') }}{% endif %}"
    "{{ (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}{{ ', ' if not loop.last else '' }}"
    "{% endfor %}{{ ']' + eos_token }}{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
    "{% elif message.role == 'tool' %}{{ '[TOOL_RESULTS] {\"content\": ' + (message.content | tojson) + "
    "', \"call_id\": \"' + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}{% endif %}{% endfor %}"
)
_TEKKEN_TOOLS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{% endif %}"
    "{% if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}"
    "{% elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content "
    "+ '[/TOOL_RESULTS]' }}{% elif message.role == 'assistant' %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{% if call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs have 9 characters!') }}{% endif %}"
    "{{ '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' + (call.function.arguments | tojson) }}"
    "{% endfor %}{{ eos_token }}{% endif %}{% endfor %}"
)
_TOOLS_XML = "{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}"
_QWEN3_CODER = (
    "{% if messages[0].role == 'system' %}{% set rules = messages[0].content %}{% else %}"
    "{% set rules = 'You are Qwen.' %}{% endif %}{{ '<|im_start|>system\\n' + rules }}"
    "{% if tools %}{{ '\\n\\n# Tools\\n\\n<tools>' }}{% for tool in tools %}"
    "{{ '\\n<function>\\n<name>' + tool.function.name + '</name>\\n<parameters>' + (tool.function.parameters | tojson) "
    "+ '</parameters>\\n</function>' }}{% endfor %}{{ '\\n</tools>' }}{% endif %}{{ '<|im_end|>\\n' }}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}{% elif message.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' + message.content }}{% for call in message.tool_calls or [] %}"
    "{{ '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}"
    "{% for name, value in call.function.arguments | items %}{{ '<parameter=' + name + '>\\n' }}"
    "{{ value if value is string else value | tojson }}{{ '\\n</parameter>\\n' }}{% endfor %}"
    "{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% elif message.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}"
    "{{ '<tool_response>\\n' + message.content + '\\n</tool_response>\\n' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_DEEPSEEK31 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}{{ '\\n\\n## Tools' }}{% for tool in tools %}{{ '\\n\\n### ' + tool.function.name + '\\n\\n"
    "Parameters: ' + (tool.function.parameters | tojson) }}{% endfor %}{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<｜User｜>' + message.content }}"
    "{% elif message.role == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}"
    "{% elif message.role == 'assistant' %}{% if loop.previtem.role == 'user' %}{{ '<｜Assistant｜></think>' }}"
    "{% endif %}{{ message.content }}{% if message.tool_calls %}{{ '<｜tool▁calls▁begin｜>' }}"
    "{% for call in message.tool_calls %}{{ '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + "
    "(call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) + "
    "'<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role == 'user' %}{{ '<｜Assistant｜></think>' }}{% endif %}"
)
_KIMI_TOOLS = (
    "{% if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson) + '<|im_end|>' }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}{{ '<|im_system|>tool<|im_middle|>## Return of ' + "
    "message.tool_call_id + '\\n' + message.content + '<|im_end|>' }}{% else %}"
    "{{ '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' + message.content }}"
    "{% if message.tool_calls %}{{ '<|tool_calls_section_begin|>' }}{% for call in message.tool_calls %}"
    "{{ '<|tool_call_begin|>functions.' + call.function.name + ':' + (loop.index0 | string) + "
    "'<|tool_call_argument_begin|>' + (call.function.arguments | tojson) + '<|tool_call_end|>' }}{% endfor %}"
    "{{ '<|tool_calls_section_end|>' }}{% endif %}{{ '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
)
_GRANITE4 = (
    "{{ '<|start_of_role|>system<|end_of_role|>' + (messages[0].content if messages[0].role == 'system' else '') }}"
    "{% if tools %}{{ '\\n<tools>' }}" + _TOOLS_XML + "{{ '\\n</tools>' }}{% endif %}{{ '<|end_of_text|>\\n' }}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|start_of_role|>user<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}"
    "{% elif message.role == 'assistant' %}{{ '<|start_of_role|>assistant<|end_of_role|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '\\n' if not loop.first or message.content else '' }}"
    "{{ '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}{% endfor %}{{ '<|end_of_text|>\\n' }}"
    "{% elif message.role == 'tool' %}{% if loop.previtem.role != 'tool' %}"
    "{{ '<|start_of_role|>user<|end_of_role|>' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|end_of_text|>\\n' }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
_GRANITE3 = (
    "{% if messages[0].role == 'system' %}"
    "{{ '<|start_of_role|>system<|end_of_role|>' + messages[0].content + '<|end_of_text|>\\n' }}{% endif %}"
    "{% if tools %}{{ '<|start_of_role|>available_tools<|end_of_role|>' + (tools | tojson) + '<|end_of_text|>\\n' }}"
    "{% endif %}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|start_of_role|>user<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}"
    "{% elif message.role == 'assistant' %}{{ '<|start_of_role|>assistant<|end_of_role|>' + message.content }}"
    "{% if message.tool_calls %}{{ '<|tool_call|>[' }}{% for call in message.tool_calls %}"
    "{{ (call.function | tojson) + (', ' if not loop.last else '') }}{% endfor %}{{ ']' }}{% endif %}"
    "{{ '<|end_of_text|>\\n' }}{% elif message.role == 'tool' %}"
    "{{ '<|start_of_role|>tool_response<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
_COMMAND = (
    "{{ bos_token + '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' }}{% if tools %}{{ '## Available Tools\\n' + "
    "(tools | tojson) + '\\n' }}{% endif %}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{{ '<|END_OF_TURN_TOKEN|>' }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message.content + '<|END_OF_TURN_TOKEN|>' }}"
    "{% elif message.role == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% if message.tool_calls %}"
    "{% if message.tool_plan or message.content %}"
    "{{ '<|START_THINKING|>' + (message.tool_plan or message.content) + '<|END_THINKING|>' }}{% endif %}"
    "{{ '<|START_ACTION|>[' }}{% for call in message.tool_calls %}{{ '\\n    {\"tool_call_id\": \"' + "
    '(loop.index0 | string) + \'", "tool_name": "\' + call.function.name + \'", "parameters": \' + '
    "(call.function.arguments | tojson) + '}' + (',' if not loop.last else '') }}{% endfor %}"
    "{{ '\\n]<|END_ACTION|>' }}{% else %}{{ '<|START_RESPONSE|>' + message.content + '<|END_RESPONSE|>' }}{% endif %}"
    "{{ '<|END_OF_TURN_TOKEN|>' }}{% elif message.role == 'tool' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[{\"results\": ' + (message.content | tojson) + "
    "'}]<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
_PAIRS = ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS", "SYSTEM_PROMPT")
_BRACKETS = tuple(
    f"[{mark}]" for mark in (*_PAIRS, *(f"/{mark}" for mark in _PAIRS), "TOOL_CALLS", "CALL_ID", "ARGS", "TOOL_CONTENT")
)
_OTHERS = {
    "Llama 2": Family(_LLAMA2),
    "Llama 4": Family(
        "{{ bos_token }}{% for message in messages %}{{ '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + "
        "message.content | trim + '<|eot|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}{% endif %}",
        eos="<|eot|>",
        bos="<|begin_of_text|>",
    ),
    "Mistral 7B v0.1, v0.2": Family(_MISTRAL),
    "Mistral Nemo, Mistral 7B v0.3": Family(_NEMO, special=("[INST]", "[/INST]")),
    "Mistral Small 3": Family(_TEKKEN, special=("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")),
    "Phi-4": Family(
        _chatml(sep="<|im_sep|>", tail="<|im_end|>"),
        eos="<|endoftext|>",
        bos=None,
        special=("<|im_sep|>", "<|im_end|>"),
    ),
    "Phi-4-mini": Family(
        "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
        eos="<|endoftext|>",
        special=("<|system|>", "<|user|>", "<|tool|>"),
    ),
    "SmolLM2, InternLM and other ChatML": Family(_chatml(), eos="<|im_end|>", bos=None),
    "ChatML on a base model (eos is <|endoftext|>)": Family(_chatml(), eos="<|endoftext|>", bos=None),
    "SmolLM3": Family(_SMOLLM3, eos="<|im_end|>", bos=None),
    "SmolLM3, enable_thinking=false": Family(_SMOLLM3, eos="<|im_end|>", bos=None, options={"enable_thinking": False}),
    "GLM-4-9B": Family(
        _GLM4, eos="<|endoftext|>", bos=None, special=("<|user|>", "<|system|>", "<|observation|>", "<|assistant|>")
    ),
    "Granite 3": Family(
        "{% for message in messages %}{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + "
        "'<|end_of_text|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
        eos="<|end_of_text|>",
    ),
    "OLMo 2": Family(
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
        "{{ '<|assistant|>\\n' + message.content + eos_token }}{% if not loop.last %}{{ '\\n' }}{% endif %}"
        "{% else %}{{ '<|' + message.role + '|>\\n' + message.content + '\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
        eos="<|endoftext|>",
        bos="<|endoftext|>",
    ),
    "Kimi K2": Family(
        "{% for message in messages %}{{ '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' + "
        "message.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}",
        eos="<|im_end|>",
        special=("<|im_system|>", "<|im_user|>", "<|im_tool|>"),
    ),
    "Ling, Ring": Family(_LING, eos="<|endoftext|>", special=("<role>", "</role>")),
    "MiniMax-M1": Family(
        "{% for message in messages %}{{ '<beginning_of_sentence>' + ('ai' if message.role == 'assistant' else "
        "message.role) + ' name=' + message.role + '\\n' + message.content + '<end_of_sentence>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<beginning_of_sentence>ai name=assistant\\n' }}{% endif %}",
        eos="<end_of_sentence>",
        special=("<beginning_of_sentence>",),
    ),
    "MiniMax-M2": Family(_MINIMAX2, eos="[e~[", special=("]~b]", "]~!b[")),
    "Mistral 7B v0.3 with tools": Family(_MISTRAL_TOOLS, special=_BRACKETS),
    "Mistral Small 3.2 with tools": Family(_TEKKEN_TOOLS, special=_BRACKETS),
    "Qwen3-Coder": Family(_QWEN3_CODER, eos="<|im_end|>", bos=None),
    "DeepSeek V3.1": Family(_DEEPSEEK31, eos="<｜end▁of▁sentence｜>", bos="<｜begin▁of▁sentence｜>"),
    "Kimi K2 with tools": Family(
        _KIMI_TOOLS, eos="<|im_end|>", bos=None, special=("<|im_system|>", "<|im_user|>", "<|im_assistant|>")
    ),
    "Granite 3 with tools": Family(_GRANITE3, eos="<|end_of_text|>"),
    "Granite 4": Family(_GRANITE4, eos="<|end_of_text|>"),
    "Command R7B": Family(_COMMAND, eos="<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>"),
}
_KNOWN = {  # end, beginning and special tokens that the template composes
    "gemma": ("<eos>", "<bos>", ()),
    "diffusion_gemma": ("<eos>", "<bos>", ()),
    "cohere": ("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", ()),
    "deepseek": ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", ()),
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", ()),
    "phi": ("<|endoftext|>", "<s>", ()),
    "gptoss": ("<|return|>", "<|startoftext|>", ()),
    "muse": ("<|eot|>", "<|begin_of_text|>", ()),
    "glm": ("<|endoftext|>", None, ("<|system|>",)),
    "lfm2": ("<|im_end|>", "<|startoftext|>", ()),
    "idefics": ("<end_of_utterance>", "<|begin_of_text|>", ()),
    "smolvlm": ("<end_of_utterance>", "<|im_start|>", ()),
    "llava": ("</s>", "<s>", ("[INST]", "[/INST]")),
    "": ("<|im_end|>", None, ()),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3.jinja": {"enable_thinking": False},
    "lfm2_2_5.jinja": {"preserve_thinking": True},
    "gemma4_v5.jinja": {"preserve_thinking": True},
    "nemotron_3_nano.jinja": {"truncate_history_thinking": False},
    "qwen3_6.jinja": {"preserve_thinking": True},
}


def _shipped(name: str, **options: Any) -> Family:
    eos, bos, special = next(value for key, value in _KNOWN.items() if name.startswith(key))
    return Family(trl_templates()[name], eos, bos, special, options)


def _families() -> dict[str, Family]:
    families = {f"TRL {name}": _shipped(name) for name in trl_templates()}
    for name, options in _OPTIONS.items():
        words = ", ".join(f"{key}={str(value).lower()}" for key, value in options.items())
        families[f"TRL {name}, {words}"] = _shipped(name, **options)
    return dict(sorted(families.items())) | _OTHERS


FAMILIES = _families()
REFUSED = [
    name
    for name in FAMILIES
    if name in ("GLM-4-9B", "Command R7B")
    or name.startswith(tuple(f"TRL {kind}" for kind in ("gpt", "idefics", "llava", "muse", "smol")))
]
ACCEPTED = [name for name in FAMILIES if name not in REFUSED]
NATIVE = [
    name
    for name in FAMILIES
    if (
        name.startswith(
            tuple(f"TRL {kind}" for kind in ("gptoss", "gemma4", "diff", "glm", "lfm2_", "llama3_", "nemo", "qwen"))
        )
        and name not in ("TRL lfm2_training.jinja", "TRL qwen2_5_vl.jinja", "TRL qwen2_5_vl_training.jinja")
        and name != "TRL llama3_training.jinja"
    )
    or name.endswith("with tools")
    or name in ("Qwen3-Coder", "DeepSeek V3.1", "Granite 4", "Command R7B")
]
"""Those with a tool format of their own that is read."""


def table(folder: Path) -> str:
    """Returns the document: two tables with one row for each family."""
    rows, tool_rows = [], []
    for number, (name, family) in enumerate(FAMILIES.items()):
        tokenizer = family.tokenizer(folder / str(number))
        rows.append(f"| {_cell(name)} | {' | '.join(_row(family, tokenizer))} |\n")
        tool_rows.append(f"| {_cell(name)} | {' | '.join(_tool_row(family, tokenizer))} |\n")
    return "".join([_HEAD.format(version=trl.__version__), *rows, _TOOL_HEAD, *tool_rows])


_HEAD = """\
# Chat templates

What `ChatFormat` (`trainers/rollouts/chat_format.py`) makes of the templates that TRL {version} ships, and of minimal
ones in the published markup of other families. Written by `python -m tests.kit.chat_families`; a test holds it
against what comes out.

- **exact**: a history rendered anew reads as the model has seen it turn by turn, but for white space and empty
  thinking where the last column says so; an episode is one context.
- **rewritten**: the template shows earlier turns differently. Where that matters, the context is rendered anew and a
  new one begins, which costs one more forward and backward pass.
- **refused**: no episode of several turns can be played with calls as text. Some of these templates can be played in
  their own tool format (`--parser native`, second table); otherwise name another: `--chat-template FILE`, where FILE
  may be the name of one of TRL's.

"variant" is TRL's template for training that takes the place of the one named. Tool output goes to the role of the
third column, the system prompt to that of the fourth ("user": at the head of the first user turn); "joined": neighbours
of one role are made one turn, with a blank line between.

| template | verdict | tool output | system prompt | end of turn | why |
| --- | --- | --- | --- | --- | --- |
"""


SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
_TOOL_HEAD = """
## The model's own tool format

With `parser="native"` the template lists the tools, the model's calls are read by a response template (the tokenizer's,
TRL's, or one of this package) and results come back in the role `tool`. Nothing is looked up by name: a response
template is accepted if it reads back what the chat template writes. So a template of your own works too.

- **exact**: after such a turn, a history rendered anew reads as the model has seen it token by token; an episode is one
  context. **nearly**: but for white space or empty thinking. **rewritten**: it is rendered anew after such a turn.
- **no**: the template has no such turn. A model that writes one reads what is wrong.
- **refused**: no tools in the template, or calls that nothing reads. Use another parser: `parser="hermes"` needs no
  format of the model.

"reasoning, call" is followed by a result, "reasoning, error" by a result and an error. "loses" names what the template
does not show next to a call, or cannot write in one; while an episode is played nothing is lost, because sampled tokens
stay as they are.

| template | one call | two calls | error | result, error | reasoning, call | reasoning, error | ends a call | loses |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
_COLUMNS = ("one call", "two calls", "error", "result and error", "reasoning and call", "reasoning, call and error")


def _row(family: Family, tokenizer: Any) -> tuple[str, ...]:
    try:
        chat = ChatFormat(tokenizer, template_options=family.options)
        chat.check_plain()
    except ConfigurationError as error:
        reason = re.sub(r"^The chat template of '[^']*' (cannot be used for multi-turn episodes: )?", "", str(error))
        return "refused", "", "", "", _cell(reason.split(" To render otherwise")[0])
    template = chat.template
    variant = next(
        (name for name, source in trl_templates().items() if source == template.source != family.template), ""
    )
    tools = f"{template.tool_role}{', joined' if template.merges_same_role else ''}"
    field = f"thinking as {template.thinking_field}" if template.thinking_field else ""
    why = [f"variant {variant}" if variant else "", field, template.note]
    return (
        template.render_mode,
        tools,
        template.system_role,
        f"`{_cell(template.stop_text)}`",
        _cell("; ".join(filter(None, why))),
    )


def _tool_row(family: Family, tokenizer: Any) -> tuple[str, ...]:
    try:
        template = ChatFormat(tokenizer, template_options=family.options).with_tools([SEARCH]).template
    except ConfigurationError as error:
        reason = re.sub(r"^.* '[^']*'[^:]*: ", "", str(error)).split(" Use another")[0].split(" To render")[0]
        return "refused", "", "", "", "", "", "", _cell(reason)
    assert isinstance(template, ToolTemplate)
    possible = {case: _verdict(*template.compare(case), template) for case in template.cases()}
    cells = [possible.get(case, "no") for case in _COLUMNS]
    return (*cells, f"`{_cell(template.call_stop_text)}`", "; ".join(template.limits))


def _verdict(seen: str, served: str, template: ToolTemplate) -> str:
    if seen == served:
        return "exact"
    return "nearly" if template.is_same(seen, served) else "rewritten"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "\\n")


if __name__ == "__main__":
    import tempfile

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(table(Path(scratch)), encoding="utf-8")
