#include <string>

#include "native/bindings.h"

namespace refit::native {
namespace {

using nb::dlpack::dtype_code;

struct Kind {
  const char* name;  // of layout files
  dtype_code code;
  std::uint8_t bits;
};
constexpr Kind kKinds[] = {{"bool", dtype_code::Bool, 8},
                           {"u8", dtype_code::UInt, 8},
                           {"i8", dtype_code::Int, 8},
                           {"i16", dtype_code::Int, 16},
                           {"i32", dtype_code::Int, 32},
                           {"i64", dtype_code::Int, 64},
                           {"f16", dtype_code::Float, 16},
                           {"bf16", dtype_code::Bfloat, 16},
                           {"f32", dtype_code::Float, 32},
                           {"f64", dtype_code::Float, 64},
                           {"f8_e4m3", dtype_code::Float8_E4M3FN, 8},
                           {"f8_e5m2", dtype_code::Float8_E5M2, 8}};

Error invalid(const std::string& message) { return {Code::kInvalid, message}; }

// An array's bytes, row-major without gaps, in host memory.
template <typename Array>
Lent lend(const Array& a) {
  if (a.device_type() != nb::device::cpu::value)
    throw Error(Code::kUnsupported, "the array is on a device (DLPack type " + std::to_string(a.device_type()) +
                                        "); this build moves host memory only");
  std::int64_t expected = 1;
  for (std::size_t i = a.ndim(); i-- > 0;) {
    if (a.size() > 0 && a.shape(i) != 1 && a.stride(i) != expected)
      throw invalid(
          "the array is not contiguous in row-major order: give a layout that describes its strides, or a copy");
    expected *= static_cast<std::int64_t>(a.shape(i));
  }
  // Read-only memory is lent to publishers alone, which do not write.
  return {nb::ndarray<>(a), const_cast<void*>(static_cast<const void*>(a.data())),
          static_cast<std::int64_t>(a.nbytes())};
}

// A view of `memory` with a shape, byte strides and a dtype, for any framework that speaks DLPack. Keeps it alive.
nb::ndarray<nb::array_api> view(nb::handle memory, std::int64_t offset, const std::vector<std::size_t>& shape,
                                const std::vector<std::int64_t>& strides, const std::string& dtype) {
  const auto whole = nb::cast<nb::ndarray<std::uint8_t, nb::ndim<1>>>(memory);
  const Kind* kind = nullptr;
  for (const Kind& k : kKinds)
    if (dtype == k.name) kind = &k;
  if (kind == nullptr) throw invalid("unknown dtype '" + dtype + "'");
  if (shape.size() != strides.size()) throw invalid("shape and strides differ in length");
  const std::int64_t item = kind->bits / 8;
  std::int64_t low = offset, high = offset + item;
  bool empty = false;
  std::vector<std::int64_t> steps;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (strides[i] % item != 0) throw invalid("a stride is no multiple of the element size: this view cannot be made");
    steps.push_back(strides[i] / item);
    empty = empty || shape[i] == 0;
    if (shape[i] > 1) (strides[i] < 0 ? low : high) += strides[i] * static_cast<std::int64_t>(shape[i] - 1);
  }
  if (!empty && (low < 0 || high > static_cast<std::int64_t>(whole.nbytes())))
    throw invalid("the view reaches outside of its memory");
  return {whole.data() + (empty ? 0 : offset),
          shape.size(),
          shape.data(),
          memory,
          steps.data(),
          nb::dlpack::dtype{static_cast<std::uint8_t>(kind->code), kind->bits, 1}};
}
}  // namespace

void bind_arrays(nb::module_& m) {
  nb::class_<Lent>(m, "Lent")
      .def_prop_ro("address", [](const Lent& l) { return reinterpret_cast<std::uintptr_t>(l.data); })
      .def_ro("bytes", &Lent::bytes);
  m.def(
      "lend_writable", [](const nb::ndarray<>& a) { return lend(a); }, nb::arg("array"),
      "The memory of an array in host memory that may be written; kept alive by what is returned.");
  m.def(
      "lend_readable", [](const nb::ndarray<nb::ro>& a) { return lend(a); }, nb::arg("array"),
      "The memory of an array in host memory that is only read; kept alive by what is returned.");
  m.def("view", &view, nb::arg("memory"), nb::arg("offset"), nb::arg("shape"), nb::arg("strides"), nb::arg("dtype"),
        "A view of a buffer with a shape, byte strides and a dtype; it speaks DLPack.");
}

}  // namespace refit::native
