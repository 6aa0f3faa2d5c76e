"""One line for a loop that a framework writes: Lightning, Transformers, Accelerate, DeepSpeed, ...

Each file finds the framework's own scaler, model and optimizer and calls `ampwatch.attach`; the
callbacks close the watch when training ends. Importing this package imports no framework: import
the file of the one you use, such as `from ampwatch.integrations.lightning import AmpwatchCallback`.
"""
