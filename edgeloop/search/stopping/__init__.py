"""Early stopping: which candidates go on training."""
