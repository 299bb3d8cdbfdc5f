"""Stand-ins for the SDK's programs: flags, files and messages of the tools, and ONNX Runtime."""
