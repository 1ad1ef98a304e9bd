"""collectives.toml: the table itself, for --collectives."""

from hvscale.comm_tuning.collectives.tables.files import Format, register

register(Format(file="collectives.toml", what="the table, for --collectives", text=lambda job: job.table.toml()))
