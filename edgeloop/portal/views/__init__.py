"""What each page shows, as plain values."""
