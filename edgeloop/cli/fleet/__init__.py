"""queue, fleet and gc: waiting work, the runners that do it, and what they leave behind."""
