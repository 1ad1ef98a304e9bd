"""`hvscale bench`."""

from hvscale.commands import bench_app
from hvscale.commands.app import new_app

app = new_app("The measurements of published studies, made again on any placement.")
app.add_typer(bench_app.app)
