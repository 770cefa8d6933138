"""What tests share: programs, models, cases, and ways to run them."""
