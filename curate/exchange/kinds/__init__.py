"""What needs an exchange, one kind a file: sort, shuffle, groups, joins, distinct, zip."""
