"""What a search leaves behind: its tables, its fronts and its hypervolume."""
