// What the self-contained build replaces: the hash of a name (xxHash) and the choice of an instruction set (Highway).
// The keys of a digest then differ from those of the library; both sides of every comparison use the same ones.
#include "codec/quantise_body.h"
#include "core/core.h"

namespace refit {
Hash128 hash128(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return {h, h * 0x9e3779b97f4a7c15u + text.size()};
}
std::string Hash128::hex() const { return std::to_string(hi) + "-" + std::to_string(lo); }
}  // namespace refit

namespace refit::codec {
namespace {
constexpr QuantOps kReference = make_quant_ops<kScalarQuantBody>("scalar", "nothing");
}
const QuantOps& quant_reference() { return kReference; }
const QuantOps& quant_ops() { return kReference; }
}  // namespace refit::codec
