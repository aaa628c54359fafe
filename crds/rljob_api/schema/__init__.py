"""Schema: the models as a CustomResourceDefinition, with the validation rules as CEL."""
