"""Azure ML: the clusters of a workspace as a compute."""
