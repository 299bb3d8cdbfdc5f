"""azure: create, set up and check an Azure ML workspace."""
