"""Chat messages to the prompt text the model was trained on, by the template in its container."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radiance_jax.errors import ModelError, UserError
from radiance_jax.text.tokenizer import ModelFiles, Tokenizer

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
MAX_TEMPLATE_BYTES = 1 << 20


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks a model's own words for training; here it is transparent."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled template. Templates come from model files, so they run in jinja2's immutable sandbox.

    `now` is what `strftime_now` reads. Raises `ModelError` for a template that does not compile.
    """

    def __init__(self, template: str, special_tokens: Mapping[str, str] | None = None,
                 now: Callable[[], datetime] = datetime.now):
        def raise_exception(message: str) -> None:
            raise jinja2.TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template must be valid jinja2: {error}",
                             param="chat_template") from error

    @classmethod
    def from_model(cls, model: ModelFiles, tokenizer: Tokenizer, override: str | None = None) -> Self | None:
        """The template in chat_template.jinja or tokenizer_config.json, or the `override`; None for a model that has
        none."""
        data = override or model.file("chat_template.jinja")
        if isinstance(data, bytes):
            data = _utf8(data, "chat_template.jinja")
        template: Any = data or tokenizer.config.get("chat_template")
        if isinstance(template, list):  # older files hold [{"name": "default", "template": ...}, ...]
            template = next((item.get("template") for item in template
                             if isinstance(item, dict) and item.get("name") == "default"), None)
        if not isinstance(template, str) or not template:
            return None
        tokens = {name: token for name in SPECIAL_TOKENS if (token := tokenizer.special_token(name))}
        return cls(template, tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], /, add_generation_prompt: bool = True,
               tools: Sequence[Mapping[str, Any]] | None = None, **kwargs: Any) -> str:
        """The prompt text, special tokens included: encode it with `add_special_tokens=False`.

        `messages` as in the OpenAI API; text parts are joined, tool-call arguments given as JSON text are parsed.
        `kwargs` reach the template, but do not replace the messages. Raises `UserError` where the messages are
        malformed or the template refuses them.
        """
        prepared = [_message(index, message) for index, message in enumerate(messages)]
        if not prepared:
            raise UserError("messages must hold at least one message", param="messages")
        values = {"documents": None, **self._special_tokens, **kwargs, "messages": prepared,
                  "tools": list(tools) if tools else None, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(values)
        except Exception as error:  # a template may fail in any way on messages it was not written for
            raise UserError(f"the model's chat template refused these messages: {error}", param="messages") from error


def no_template(instead: str) -> UserError:
    """Of a model without a chat template. `instead`: what can be done in this place."""
    return UserError(f"chat needs a template, and this model has none; {instead}, or give one by --chat-template FILE",
                     param="messages")


def read_template(path: str) -> str:
    """The text of a template file given by the user. Raises `UserError` for a file that cannot be one."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_TEMPLATE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise UserError(f"chat_template must be the path of a file; {path!r} cannot be read "
                        f"({getattr(error, 'strerror', None) or error})", param="chat_template") from None
    if not data.strip() or len(data) > MAX_TEMPLATE_BYTES:
        raise UserError(f"chat_template must be a file with text, of at most {MAX_TEMPLATE_BYTES} bytes; got {path!r}",
                        param="chat_template")
    return _utf8(data, path)


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{where} must be UTF-8: {error}", param="chat_template") from None


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not message["role"]:
        raise UserError(f"{where} must be an object with a role", param="messages")
    result = dict(message)
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise UserError(f"{where}.content may hold only text parts (this model reads text); got {kind!r}",
                                param="messages")
        content = "\n".join(part["text"] for part in content)
    elif content is not None and not isinstance(content, str):
        raise UserError(f"{where}.content must be text or a list of parts; got {type(content).__name__}",
                        param="messages")
    result["content"] = content or ""
    if message.get("tool_calls"):
        if not isinstance(message["tool_calls"], (list, tuple)):
            raise UserError(f"{where}.tool_calls must be a list; got {type(message['tool_calls']).__name__}", param="messages")
        result["tool_calls"] = [_tool_call(where, call) for call in message["tool_calls"]]
    return result


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"{where}.tool_calls must hold objects with a function and its name", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # the API sends JSON text, templates expect the object itself
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}.tool_calls: arguments must be valid JSON: {error}", param="messages") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which templates are not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
