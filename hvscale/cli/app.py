"""How each command's file makes its command."""

import typer


def new_app(text: str | None = None) -> typer.Typer:
    """Return the Typer app of one command, or, with `text` as its help, of a group of commands."""
    app = typer.Typer(
        help=text,
        no_args_is_help=text is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    if text is not None:
        app.callback()(lambda: None)
    return app
