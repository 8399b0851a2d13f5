"""From L0 to L1: what to read, how it is written, and when it counts."""
