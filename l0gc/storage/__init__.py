"""The object store, the only package that talks to S3, and the shared log built on it."""
