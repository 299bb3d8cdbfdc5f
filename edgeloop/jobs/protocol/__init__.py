"""What a job is once it is submitted: the files that client, compute and wrapper share."""
