"""What a query in Spark's SQL needs of its tables: names, columns, conditions and joins. No Spark, no I/O."""
