"""The codecs, algorithms and types that tests of compression combine."""

CODECS = ["float16", "bfloat16", "int8", "int4", "ternary", "sign", "topk:0.01", "threshold:1.5"]
ALGORITHMS = ["ring", "double_binary_tree", "halving_doubling", "direct"]
DTYPES = ["float16", "bfloat16", "float32", "float64"]
