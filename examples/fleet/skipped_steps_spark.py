"""Count the skipped steps of each published run with Spark, from the files that Delta lists.

python examples/fleet/skipped_steps_spark.py FOLDER (tested with a folder only; on S3, Spark needs
hadoop-aws and addresses that begin with s3a://)
"""

import sys

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

PLACE = sys.argv[1]
spark = SparkSession.builder.getOrCreate()


def table(name):
    return spark.read.parquet(*DeltaTable(f"{PLACE}/{name}").file_uris())


runs, steps = table("runs"), table("steps")
is_current = (steps.run_id == runs.id) & f.array_contains(runs.editions, steps.edition)
(
    steps.join(runs, is_current)
    .groupBy("name")
    .agg(f.count("*").alias("steps"), f.sum(f.col("skipped").cast("int")).alias("skipped"))
    .orderBy(f.desc("skipped"))
    .show()
)
spark.stop()
