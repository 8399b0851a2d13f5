"""Keep the cluster's topics, producers and epoch in one shared log."""
