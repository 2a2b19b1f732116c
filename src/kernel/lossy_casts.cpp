#include "kernel/kernel.h"

namespace refit::kernel {
namespace {
constexpr std::size_t kNamesShown = 20;
}

Error LossyCasts::error(const std::string& what) const {
  std::string names;
  std::size_t shown = 0;
  for (const std::string& name : tensors_) {
    if (shown++ == kNamesShown) break;
    names += (names.empty() ? "" : ", ") + name;
  }
  if (tensors_.size() > kNamesShown) names += ", …";
  return Error(Code::kMismatch, what + " changes values of " + std::to_string(tensors_.size()) + " tensor" +
                                    (tensors_.size() == 1 ? "" : "s") + " (" + names +
                                    "); allow it with --allow-cast NAME")
      .at_tensor(*tensors_.begin());
}

}  // namespace refit::kernel
