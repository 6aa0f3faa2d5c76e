"""Callbacks for training frameworks (Lightning, Transformers, Accelerate), thin: each finds the
framework's scaler, model and optimizer, calls `ampwatch.attach`, and closes the watch at the end.

None is here yet. This room and `probe` are the only ones that may import torch.
"""
