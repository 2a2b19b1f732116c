#include "native/bindings.h"

namespace refit::native {

void bind_layout(nb::module_& m) {
  nb::class_<TensorInfo>(m, "TensorInfo")
      .def_ro("name", &TensorInfo::name)
      .def_ro("shape", &TensorInfo::shape)
      .def_ro("dtype", &TensorInfo::dtype);
  nb::class_<BufferInfo>(m, "BufferInfo").def_ro("name", &BufferInfo::name).def_ro("bytes", &BufferInfo::bytes);
  nb::class_<HoldingInfo>(m, "HoldingInfo")
      .def_ro("tensor", &HoldingInfo::tensor)
      .def_ro("view", &HoldingInfo::view)
      .def_ro("box", &HoldingInfo::box)
      .def_ro("buffer", &HoldingInfo::buffer)
      .def_ro("offset", &HoldingInfo::offset)
      .def_ro("strides", &HoldingInfo::strides)
      .def_ro("dtype", &HoldingInfo::dtype);
  nb::class_<ParameterInfo>(m, "ParameterInfo")
      .def_ro("name", &ParameterInfo::name)
      .def_ro("shape", &ParameterInfo::shape)
      .def_ro("dtype", &ParameterInfo::dtype)
      .def_ro("buffer", &ParameterInfo::buffer)
      .def_ro("offset", &ParameterInfo::offset);
  nb::class_<RankInfo>(m, "RankInfo")
      .def_ro("rank", &RankInfo::rank)
      .def_ro("host", &RankInfo::host)
      .def_ro("buffers", &RankInfo::buffers)
      .def_ro("holdings", &RankInfo::holdings)
      .def_ro("parameters", &RankInfo::parameters);
  nb::class_<Layout>(m, "Layout")
      .def_static("from_model", &Layout::from_model, nb::arg("model"), nb::arg("spec"), Waits())
      .def_static("from_config", &Layout::from_config, nb::arg("config"), nb::arg("spec"), Waits())
      .def_static("from_json", &Layout::from_json, nb::arg("text"), Waits())
      .def("to_json", &Layout::to_json, Waits())
      .def("digest", &Layout::digest)
      .def("world", &Layout::world)
      .def("instances", &Layout::instances)
      .def("tensors", &Layout::tensors)
      .def("tied", &Layout::tied)
      .def("rank", &Layout::rank, nb::arg("rank"));
}

}  // namespace refit::native
