"""MLflow: the tracker `mlflow`."""
