"""From L0 to L1: what to read, how to write it, and when it counts."""
