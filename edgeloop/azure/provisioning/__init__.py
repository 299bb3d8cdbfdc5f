"""What a workspace should have, what it lacks, and making it."""
