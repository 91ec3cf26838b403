"""How a command was used wrongly, in one line: what was given, what is expected, where help is."""

from typing import Any


def usage_message(error: Any) -> str:
    """The message of one of typer's errors."""
    from pydantic import ValidationError

    cause, parameter, context = error.__cause__, getattr(error, "param", None), getattr(error, "ctx", None)
    text = str(error.format_message()).rstrip(". ")
    if isinstance(cause, ValidationError) and parameter is not None:
        from pipelines.config_messages import wrong_value

        # metavars of arguments say more than the name: [TABLE]...
        named = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
        text = f"{named.strip('[].')}: {wrong_value(cause.errors(include_url=False)).rstrip('.')}"
    return text if context is None else f"{text}; see `{context.command_path} --help`"
