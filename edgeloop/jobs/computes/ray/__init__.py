"""Ray Jobs on an existing cluster."""
