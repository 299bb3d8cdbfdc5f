"""What people see in a terminal: tables that fit, live views, progress, the end by Ctrl-C."""
