"""Not vLLM: three operators that SGLang's layers import from it where neither a GPU nor SGLang's own CPU kernels are found."""
