"""Count the skipped steps of each published run with Ray, one task for each day.

python examples/fleet/skipped_steps_ray.py s3://team/runs (or a folder)
"""

import sys
from collections import Counter

import ray
from deltalake import DeltaTable

PLACE = sys.argv[1]


@ray.remote
def skipped_on(place, day, editions):
    """How many steps each run skipped, of the runs that started on a day."""
    rows = DeltaTable(f"{place}/steps").to_pyarrow_table(
        filters=[("day", "=", day)], columns=["run_id", "edition", "skipped"]
    )
    counts = Counter()
    for row in rows.filter(rows.column("skipped")).to_pylist():
        if row["edition"] in editions.get(row["run_id"], ()):
            counts[row["run_id"]] += 1
    return counts


runs = DeltaTable(f"{PLACE}/runs").to_pyarrow_table().to_pylist()
editions = {run["id"]: run["editions"] for run in runs}
days = {run["started"].date() for run in runs}
tasks = [skipped_on.remote(PLACE, day, editions) for day in sorted(days)]
skipped = sum(ray.get(tasks), Counter())
for run in runs:
    print(run["name"], skipped[run["id"]])
