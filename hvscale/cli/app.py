"""The one way in which a command stands in its file."""

import typer


def new_app(text: str | None = None) -> typer.Typer:
    """For one command, or with `text` for a group of them, which `text` describes."""
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
