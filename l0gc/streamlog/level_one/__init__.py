"""Lifts records from L0 to L1: selects what to read, writes it, and commits it."""
