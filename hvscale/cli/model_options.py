"""Command-line options made from the fields of a pydantic model, and commands that get the model
made of their values.
"""

from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperCommand
from typer.main import get_command

from hvscale.core.numbers import limits


class ModelCommand(TyperCommand):
    """A command with options for the fields of a model besides its own; `context.obj` is the model
    made of their values.
    """

    fields: Mapping[str, FieldInfo]
    argument: str | None = None
    own_first = True
    checks_csv = True

    def __init__(self, *args: Any, params: list[Any], **settings: Any) -> None:
        made = parameters_of(self.fields, self.argument)
        super().__init__(*args, params=[*params, *made] if self.own_first else [*made, *params], **settings)

    def complete_help(self) -> None:
        """Fill in the help texts that take long to make; --help calls this."""
        for param in self.params:
            field = self.fields.get(param.name or "")
            extra = field.json_schema_extra if field is not None else None
            if isinstance(extra, dict) and callable(text := extra.get("help")):
                param.help = text()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.complete_help()
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        csv = ctx.params.get("csv")
        if csv is not None and self.checks_csv:
            check_csv(csv, ctx.params.get("run") or getattr(ctx.obj, "run", None))
        return super().invoke(ctx)

    def take_values(self, ctx: Any) -> dict[str, Any]:
        """The values of the options that were given or have a default, by field; the command itself
        does not get them.
        """
        values = {name: ctx.params.pop(name) for name in self.fields}
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value != ()
        }


def config_command(config: type[BaseModel], make: Callable[..., BaseModel], argument: str) -> type[ModelCommand]:
    """For `app.command(cls=...)`: a command with an option for each field of `config`, and
    `argument` as its argument.
    """

    class ConfigCommand(ModelCommand):
        fields = config.model_fields
        own_first = False
        checks_csv = False  # ranks other than 0 write none, and may lack its folder

        def invoke(self, ctx: Any) -> Any:
            ctx.obj = make(**self.take_values(ctx))
            return super().invoke(ctx)

    ConfigCommand.argument = argument
    return ConfigCommand


def check_csv(path: Path, run: Path | None) -> None:
    """Raises RequestError if the CSV file cannot be written, so that no long job starts in vain.

    A file in the run folder passes, because the job creates that folder.
    """
    from hvscale.report.csv_file import require_writable

    if run is None or run.absolute() not in path.absolute().parents:
        require_writable(path)


def parameters_of(fields: Mapping[str, FieldInfo], argument: str | None = None) -> list[Any]:
    """A parameter of a Typer command for each field; the field's description is its help.

    Typer reads them from the signature of a dataclass that has the same fields.
    """
    made = [(name, *parameter(name, field, is_argument=name == argument)) for name, field in fields.items()]
    app = typer.Typer(add_completion=False)
    app.command()(make_dataclass("Options", made, kw_only=True))
    return get_command(app).params


def parameter(name: str, field: FieldInfo, is_argument: bool) -> tuple[Any, ...]:
    """The annotation that Typer takes, and the default, where the command line may do without the
    value.
    """
    default = field.get_default(call_default_factory=True)
    if isinstance(default, tuple):
        default = None
    if is_argument:
        info: Any = typer.Argument(metavar=name.upper(), help=field.description)
    else:
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        flags: Any = extra.get("flags") or ["--" + name.replace("_", "-")]
        info = typer.Option(
            *flags,
            help=field.description,
            metavar=str(extra["metavar"]) if "metavar" in extra else value_name(field.annotation),
            **limits(field.annotation, field.metadata),
        )
    kind = plain_type(field.annotation)
    if field.is_required():
        return (Annotated[kind, info],)
    hint: Any = Annotated[kind if default is not None else kind | None, info]
    return (hint,) if is_argument else (hint, default)


def plain_type(annotation: Any) -> Any:
    """The type that the command line reads; pydantic checks the rest. `Literal[2, 3]` is an int,
    `Count | None` too.
    """
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return next(plain_type(kind) for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is tuple:
        return GenericAlias(list, plain_type(get_args(annotation)[0]))
    return plain_type(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def value_name(annotation: Any) -> str:
    """What the help calls an option's value: `a|b`, N, X, PATH or TEXT; empty for a switch."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    kind = plain_type(annotation)
    return {bool: "", int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")
