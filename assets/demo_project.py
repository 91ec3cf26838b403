"""The demo's project: a small shop whose change feed lands as files, three mirrors, one published table."""

from datetime import date
from pathlib import Path

from pipelines.config_template import WORKSPACE

PUBLISHED = "shop.orders_daily"

_CONFIG = """\
# The demo's shop. `nevermore init` writes a config for your own tables, with every option explained.

catalog:
  type: sql
  uri: sqlite:///warehouse/catalog.db
  warehouse: warehouse

tables:
  shop.customers:
    source: {type: files, path: "landing/customers/*.jsonl", format: debezium-json}
    key: [id]
    types: {credit: "decimal(10, 2)", updated_at: timestamptz}

  shop.orders:                           # partitioned by a column that is no part of the key
    source: {type: files, path: "landing/orders/*.jsonl", format: debezium-json}
    key: [id]
    types: {amount: "decimal(12, 2)", ordered_at: timestamptz}
    partition_by: ["day(ordered_at)"]

  shop.order_lines:                      # a key of two columns
    source: {type: files, path: "landing/order_lines/*.jsonl", format: debezium-json}
    key: [order_id, line_no]
    types: {price: "decimal(10, 2)", quantity: int}

published:
  shop.orders_daily:
    partition: day
    start: "{first_day}"
    sql: >
      select cast(o.ordered_at as date) as day,
             coalesce(c.city, 'unknown') as city,
             count(distinct o.id) as orders,
             count(l.line_no) as order_lines,
             cast(coalesce(sum(l.quantity * l.price), 0) as decimal(18, 2)) as revenue
      from shop.orders o
      left join shop.customers c on c.id = o.customer_id
      left join shop.order_lines l on l.order_id = o.id
      group by 1, 2
"""


def write_demo_config(folder: Path, first_day: date) -> Path:
    """The demo's nevermore.yaml in `folder`, written unless it is there; a changed one is the user's.

    Args:
        folder: of the project.
        first_day: of the simulated orders, the first partition of the published table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nevermore.yaml"
    if not path.exists():
        (folder / "workspace.yaml").write_text(WORKSPACE, encoding="utf-8")
        path.write_text(_CONFIG.replace("{first_day}", str(first_day)), encoding="utf-8")
    return path
