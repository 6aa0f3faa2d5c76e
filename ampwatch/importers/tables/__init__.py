"""Tables: CSV, JSON, Parquet, TensorBoard and W&B files."""
