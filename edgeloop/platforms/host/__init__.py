"""This machine's CPU through ONNX Runtime."""
