"""The text formats, one small file a framework."""
