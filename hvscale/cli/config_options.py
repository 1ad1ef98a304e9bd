"""Options of a command that are made from the fields of its configuration."""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel

from hvscale.core.numbers import limits
from hvscale.trainer.config import flag


def options_of(
    config: type[BaseModel], argument: str, **further: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: gives a command one option for each field of `config`, and `argument` as its argument; the field's text is the help.

    `further` are options by their annotation, None by default, such as `json=Json`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = []
        for name, field in config.model_fields.items():
            kind, default = plain_type(field.annotation), field.get_default(call_default_factory=True)
            if name == argument:
                info: Any = typer.Argument(metavar=name.upper(), help=field.description)
            else:
                info = typer.Option(
                    flag(name),
                    help=field.description,
                    metavar=choices(field.annotation),
                    **limits(field.annotation, field.metadata),
                )
            hint: Any = Annotated[kind if default is not None else kind | None, info]
            shown = inspect.Parameter.empty if field.is_required() or name == argument else default
            if field.is_required():
                hint = Annotated[kind, info]
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=hint))
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in further.items()
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def plain_type(annotation: Any) -> Any:
    """The type that the command line reads; pydantic checks the rest. `Literal[2, 3]` is an int, `Count | None` too."""
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return next(plain_type(kind) for kind in get_args(annotation) if kind is not type(None))
    return plain_type(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def choices(annotation: Any) -> str | None:
    return "|".join(map(str, get_args(annotation))) if get_origin(annotation) is Literal else None
