"""Reading the Avro files of table metadata: manifest lists and manifests. Data files are read elsewhere."""
