"""What is asked for, and what will run: plans as values, rewritten by functions, and the stages that come of them."""
