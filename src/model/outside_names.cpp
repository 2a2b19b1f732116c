#include "model/outside_names.h"

#include <algorithm>
#include <set>

#include "model/rules/symbols.h"

namespace refit::model {
namespace {
constexpr std::size_t kShown = 5;
}

std::string names_text(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) out += (i ? ", " : "") + names[i];
  return names.size() > kShown ? out + " and " + std::to_string(names.size() - kShown) + " more" : out;
}

std::string plain_name(std::string_view name) {
  std::string out;
  const auto parts = split(name, '.');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool wrapper = parts[i] == "_orig_mod" || parts[i] == "_fsdp_wrapped_module" ||
                         (parts[i] == "base_layer" && i > 0) || (parts[i] == "module" && out.empty());
    if (!wrapper) out += (out.empty() ? "" : ".") + std::string(parts[i]);
  }
  return out.empty() ? std::string(name) : out;
}

Result<Catalogue> plain_names(Catalogue outside) {
  std::vector<std::string> names;
  for (LogicalTensor& t : outside.tensors) {
    std::string plain = plain_name(t.name);
    if (plain != t.name) names.push_back(t.name);
    t.name = std::move(plain);
  }
  if (names.empty()) return outside;
  std::sort(outside.tensors.begin(), outside.tensors.end(),
            [](const LogicalTensor& a, const LogicalTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < outside.tensors.size(); ++i)
    if (outside.tensors[i].name == outside.tensors[i - 1].name) {
      const std::string& plain = outside.tensors[i].name;
      const auto other = std::ranges::find_if(names, [&](const std::string& n) { return plain_name(n) == plain; });
      return Error(Code::kInvalid, "tensor " + plain + " is there twice: " + *other + " is it without its wrappers")
          .at_tensor(plain);
    }
  return outside;
}

Result<std::map<std::string, std::string, std::less<>>> match_names(std::span<const std::string> outside,
                                                                    std::span<const std::string> known,
                                                                    std::string_view what) {
  std::map<std::string, std::string, std::less<>> out;
  for (const std::string& name : outside)
    if (const auto [at, fresh] = out.emplace(plain_name(name), name); !fresh)
      return Error(Code::kInvalid, std::string(what) + ": " + at->second + " and " + name + " are both " + at->first +
                                       " without their wrappers")
          .at_tensor(at->first);
  const std::set<std::string_view> wanted(known.begin(), known.end());
  std::vector<std::string> missing, left;
  for (std::string_view name : wanted)
    if (!out.contains(name)) missing.emplace_back(name);
  for (const auto& [plain, name] : out)
    if (!wanted.contains(plain)) left.push_back(name);
  if (missing.empty() && left.empty()) return out;
  std::string text(what);
  if (!missing.empty()) text += ": lacks " + names_text(missing);
  if (!left.empty()) text += (missing.empty() ? ": has " : "; has ") + names_text(left) + ", which are not known";
  return Error(Code::kMismatch, text).at_tensor(missing.empty() ? left[0] : missing[0]);
}

}  // namespace refit::model
