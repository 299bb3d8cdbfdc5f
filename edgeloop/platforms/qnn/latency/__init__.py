"""From the compiler's estimate to a latency on a board, with an interval."""
