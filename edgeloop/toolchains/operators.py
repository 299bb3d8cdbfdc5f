"""Which ONNX operators the chip's compiler takes, as ONNX Runtime documents it for QNN.

The compiler itself answers every unknown operator with the same sentence that names none, so the
reason is found here, before it is asked.
"""

from __future__ import annotations

# Gone before the compiler sees the graph: they are folded into constants or dropped.
_FOLDED = "Constant ConstantOfShape Dropout Identity Range Shape Size"

_TAKEN = """
Abs Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Cast Ceil Clip Concat Conv
ConvTranspose Cos CumSum DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten
Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish InstanceNormalization
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LRN MatMul Max MaxPool
Mean Min Mod Mul Neg Not Or Pad Pow PRelu QuantizeLinear Reciprocal ReduceL2 ReduceMax ReduceMean
ReduceMin ReduceProd ReduceSum Relu Reshape Resize Round ScatterElements ScatterND Sigmoid Sign Sin
Slice Softmax Softplus SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Tile TopK
Transpose Unsqueeze Upsample Where Xor
"""

SUPPORTED = frozenset((_FOLDED + " " + _TAKEN).split())
STANDARD_DOMAINS = frozenset(("", "ai.onnx"))
