"""Lift records from L0 to L1: select them, write them, and commit them."""
