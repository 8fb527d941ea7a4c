"""What needs an exchange: sort, shuffle, groups, joins, distinct, zip."""
