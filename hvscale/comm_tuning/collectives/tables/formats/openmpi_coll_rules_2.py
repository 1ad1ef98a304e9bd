"""openmpi-coll-rules-2.conf: the same rules in the second version of the form, which Open MPI reads
from 5.0.7 on.
"""

from hvscale.comm_tuning.collectives.tables.files import Format, register
from hvscale.comm_tuning.collectives.tables.formats.openmpi_coll_rules import applies, rules
from hvscale.comm_tuning.collectives.tables.openmpi_rules import rules_file

register(
    Format(
        file="openmpi-coll-rules-2.conf",
        what="the same, in the second version of the form (5.0.7 and later)",
        text=lambda job: rules_file(rules(job), version=2),
        applies=applies,
    )
)
