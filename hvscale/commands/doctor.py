"""`hvscale doctor`."""

from hvscale.commands.app import new_app
from hvscale.commands.console import print_json, results, working
from hvscale.commands.options import Json

app = new_app()


@app.command()
def doctor(json: Json = False) -> None:
    """Say what is installed, what works, and how to mend what does not.

    Example: `hvscale doctor`
    """
    from hvscale.doctor import Report, examine

    with working("looking around"):
        checks = list(examine())
    if json:
        return print_json(Report(checks=checks))
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(
            Text("good", style="green") if check.good else Text("bad", style="red"),
            check.name,
            check.found if check.good else f"{check.found}\n-> {check.mend}",
        )
    results().print(table)
    return None
