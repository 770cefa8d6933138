"""What tests share: programs, models, cases and ways of running them."""
