"""What works in a workspace, what does not, and how to fix it."""
