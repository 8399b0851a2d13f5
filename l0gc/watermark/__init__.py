"""M: what each partition and the whole cluster may still need, and the one place where M is published."""
