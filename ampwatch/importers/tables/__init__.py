"""Readers of table files: CSV, JSON, Parquet, TensorBoard and W&B."""
