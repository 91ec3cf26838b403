"""The open orders of each customer, by a Spark session."""

from nevermore import scan_core
from nevermore.scan_core.spark import dataframe, spark_session

spark = spark_session(master="local[2]")
orders = scan_core.open_table("warehouse/shop/orders").scan().where("status = 'open'")
dataframe(spark, orders).groupBy("customer_id").sum("amount").show()
