"""The gate for continuous integration: a model against a stored baseline."""
