"""Tasks on Ray. Nothing else imports ray."""
