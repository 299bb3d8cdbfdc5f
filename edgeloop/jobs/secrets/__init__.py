"""What is secret in a project and in a job: files, variables, and texts that look like keys."""
