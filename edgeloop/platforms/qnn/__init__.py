"""Qualcomm AI Engine Direct through onnxruntime-qnn: compiler, simulator and latency estimates."""
