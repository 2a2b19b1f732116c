#include "core/ids.h"

namespace refit {

std::string Txn::to_string() const {
  return lineage.hex().substr(0, 8) + "/" + std::to_string(epoch.value) + "/" + std::to_string(counter);
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kSource:
      return "source";
    case Role::kTarget:
      return "target";
    case Role::kClient:
      return "client";
  }
  return "client";
}

std::string MemberName::to_string() const {
  return std::string(refit::to_string(role)) + ":" + std::to_string(instance) + "." + std::to_string(rank);
}

}  // namespace refit
