"""run and job: scripts that run somewhere else."""
