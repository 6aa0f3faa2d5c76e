"""A foreign log in, a `Run` out: one small file a framework, one registry.

An importer recognises its framework's text (or table) and yields rows of `ampwatch.rows`, absent
where the log is silent; `store` writes them, and from there a foreign run is a run like any other.
No importer is here yet.
"""
