"""`hvscale doctor`."""

from hvscale.cli.app import Json, new_app
from hvscale.cli.console import print_json, results, spinner

app = new_app()


@app.command()
def doctor(json: Json = False) -> None:
    """Check what is installed and what works, and print how to fix the rest.

    Example: `hvscale doctor`
    """
    from hvscale.cli.doctor import Report, examine

    with spinner("checking"):
        checks = list(examine())
    if json:
        return print_json(Report(checks=checks))
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in checks:
        table.add_row(
            Text("good", style="green") if check.good else Text("bad", style="red"),
            check.name,
            check.found if check.good else f"{check.found}\n-> {check.fix}",
        )
    results().print(table)
    return None
