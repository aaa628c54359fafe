"""The documentation site: what MkDocs needs beyond `mkdocs.yml`."""
