"""M: what each partition may still need, what the whole cluster may, and the one place where that is published."""
