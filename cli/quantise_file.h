// Quantised safetensors files: what `refit quantize` and `refit dequantize` do. Names as engines load them.
#pragma once
#include <string>
#include <vector>

#include "codec/codec.h"
#include "files/files.h"

namespace refit::cli {

struct QuantFormat {
  std::string name;  // "fp8_block", "fp8_channel", "mxfp8"
  codec::Quant quant;
  std::string scale_suffix;  // behind the weight's name: "_scale_inv"
};
// "fp8_block", "fp8_channel" or "mxfp8".
QuantFormat quant_format(const std::string& name, bool power_of_two);

struct QuantTensor {
  std::string name;
  Dims shape;
  codec::Findings findings;
};
struct QuantReport {
  std::vector<QuantTensor> converted;
  std::vector<std::string> kept;         // tensors copied as they are
  std::vector<std::string> kept_linear;  // of these the modules whose weight is a matrix
  std::int64_t bytes_in = 0, bytes_out = 0;
};

// Quantises every matrix `X.weight` of bf16 or f32 but norms, embeddings, heads, routers and names that contain one of
// `keep`; the rest is copied. Errors: kUnsupported for a matrix that the format cannot hold, naming it.
Result<QuantReport> quantise_file(const std::string& in, const std::string& out, const QuantFormat& format,
                                  const std::vector<std::string>& keep);
// Back to `dtype` (bf16 or f32). Formats follow from dtype and shape of each scale tensor. Errors: kMismatch for codes
// without a scale, or with one of another shape.
Result<QuantReport> dequantise_file(const std::string& in, const std::string& out, DType dtype);

}  // namespace refit::cli
