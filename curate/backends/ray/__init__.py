"""Tasks, pools of actors and the cluster, on Ray. Nothing else imports ray."""
