"""What `nevermore init` writes: a commented nevermore.yaml, and the workspace by which `dagster dev` finds it."""

WORKSPACE = """\
load_from:
  - python_module: assets.definitions
"""
"""A workspace.yaml: Dagster loads our definitions, and they the nevermore.yaml in the working directory."""


def config_template() -> str:
    """The commented nevermore.yaml that `nevermore init` writes."""
    return _TEMPLATE


_TEMPLATE = """\
# What to read, into which tables, and how. Paths are relative to this file; ${NAME} is filled from the environment.

catalog:
  type: sql                              # sql | rest | hive | glue; other properties go to PyIceberg as they are
  uri: sqlite:///warehouse/catalog.db
  warehouse: warehouse

tables:
  shop.products:                         # the mirror; its change log is change_log.shop_products
    source:
      type: files
      path: landing/products/*.jsonl     # applied in name order; new files are picked up by the next run
      format: debezium-json              # leave it out to let the first file tell
    key: [id]
    # order_by: position                 # or payload columns that order the events of a key
    # types: {price: "decimal(10,2)"}    # only where the feed does not tell, or to override it
    # partition_by: [day(created_at)]    # also column, bucket(16, id), truncate(4, sku), year, month, hour
    # include: []                        # columns to keep; exclude: columns to leave out
    # rename: {old_name: new_name}
    # cast: {quantity: long}
    # inserts: checked                   # trusted: an insert never meets a live key, so it writes no delete row
    # soft_delete: false                 # true: keep deleted rows, with _deleted set
    # global_deletes: allow              # refuse: fail rather than write a delete that reaches every partition
    # commit_rows: 1000000
    # commit_interval: 60s
    # memory_limit_bytes: 1GiB
    # max_quarantine_ratio: 0.5          # more rejected events stop the batch
    # properties: {nevermore.keep-snapshots: 100}

# ingest_schedule: "*/5 * * * *"         # when Dagster applies what is new, in UTC

# published:                             # re-made day by day with Spark, from mirrors
#   shop.products_daily:
#     partition: day
#     sql: >
#       select cast(updated_at as date) as day, count(*) as products
#       from shop.products group by 1
"""
