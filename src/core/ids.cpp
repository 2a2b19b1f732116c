#include "core/ids.h"

#include <charconv>

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

std::optional<MemberName> MemberName::parse(std::string_view text) {
  MemberName out;
  const auto colon = text.find(':'), dot = text.find('.');
  if (colon == std::string_view::npos || dot == std::string_view::npos || dot < colon) return std::nullopt;
  bool known = false;
  for (Role role : {Role::kSource, Role::kTarget, Role::kClient})
    if (text.substr(0, colon) == refit::to_string(role)) out.role = role, known = true;
  const auto number = [](std::string_view s, std::uint32_t& v) {
    const auto [end, err] = std::from_chars(s.data(), s.data() + s.size(), v);
    return err == std::errc() && end == s.data() + s.size() && !s.empty();
  };
  const bool good = known && number(text.substr(colon + 1, dot - colon - 1), out.instance) &&
                    number(text.substr(dot + 1), out.rank) && out.to_string() == text;
  return good ? std::optional(out) : std::nullopt;
}

}  // namespace refit
