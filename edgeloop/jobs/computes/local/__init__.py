"""This machine as a compute: a queue in a folder, without a daemon."""
