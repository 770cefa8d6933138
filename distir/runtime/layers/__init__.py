"""Attention, recurrent and normalizing layers, experts, losses, and their gradients."""
