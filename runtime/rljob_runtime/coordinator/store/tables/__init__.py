"""Tables: the rows of the store. Each module has a table, or those that change in one transaction."""
