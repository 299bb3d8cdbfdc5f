"""The portal for programs: JSON, event streams and metrics."""
