"""Layouts: the tensor parallel sizes of machines, and what one look at a round changes of them."""
