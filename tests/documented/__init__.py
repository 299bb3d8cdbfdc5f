"""README and docs as programs: every command is parsed, and run unless a remark says why not."""
