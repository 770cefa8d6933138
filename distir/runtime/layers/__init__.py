"""
Attention, recurrent and normalisation layers, experts, losses, and their gradients.
"""
