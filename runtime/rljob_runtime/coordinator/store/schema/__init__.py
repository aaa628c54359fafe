"""Schema: the tables of a store with their constraints, and the migrations from earlier formats."""
