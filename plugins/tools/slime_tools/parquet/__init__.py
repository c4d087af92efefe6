"""Parquet files as rows of a data set."""
